"use strict";

// An operation that is marked with x-hideTryItPanel has nothing to try.
const HideTryIt = () => ({
  statePlugins: {
    spec: {
      wrapSelectors: {
        allowTryItOutFor: (original, system) => (state, path, method) =>
          original(state, path, method) &&
          system.specSelectors.specJson().getIn(["paths", path, method, "x-hideTryItPanel"]) !== true,
      },
    },
  },
});

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#interface",
  layout: "BaseLayout",
  presets: [SwaggerUIBundle.presets.apis],
  plugins: [HideTryIt],
  deepLinking: true,
  // A mistyped field or parameter is an error here, not ignored.
  requestInterceptor: (request) => {
    if (!request.loadSpec) request.headers.Prefer = "handling=strict";
    return request;
  },
  showExtensions: true,
  // The key is typed once and forgotten with the page: it is stored nowhere.
  persistAuthorization: false,
  // Nothing leaves this service.
  validatorUrl: null,
});
