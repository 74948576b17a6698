"use strict";

// An operation that is marked with x-hideTryItPanel has nothing to try, and no single page describes two licences.
const Corrections = () => ({
  statePlugins: {
    spec: {
      wrapSelectors: {
        selectLicenseUrl: () => () => undefined,
        allowTryItOutFor: (original, system) => (state, path, method) =>
          original(state, path, method) &&
          system.specSelectors.specJson().getIn(["paths", path, method, "x-hideTryItPanel"]) !== true,
      },
    },
  },
});

// Swagger UI has a dark theme, and leaves it to the page when to show it.
const dark = matchMedia("(prefers-color-scheme: dark)");
const chooseTheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", chooseTheme);
chooseTheme();

// Above the operations stands the first paragraph of the introduction; the others are folded (see page.css). Copies are made,
// because the originals belong to Swagger UI.
const foldIntroduction = () => {
  const about = document.querySelector("#about");
  const paragraphs = [...document.querySelectorAll(".info .renderedMarkdown p")].slice(1);
  about.append(...paragraphs.map((paragraph) => paragraph.cloneNode(true)));
  document.querySelector(".information-container").after(about);
};

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#interface",
  layout: "BaseLayout",
  onComplete: foldIntroduction,
  presets: [SwaggerUIBundle.presets.apis],
  plugins: [Corrections],
  deepLinking: true,
  showExtensions: true,
  // The key is typed once and forgotten with the page: it is stored nowhere.
  persistAuthorization: false,
  // Nothing leaves this service.
  validatorUrl: null,
});
