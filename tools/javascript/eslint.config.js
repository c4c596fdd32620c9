// Rules for the dashboard's pages: what runs in a browser, as modules, without packages.
import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    files: ["**/*.js"],
    languageOptions: { ecmaVersion: 2023, sourceType: "module", globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": ["error", { destructuring: "all" }],
      "no-shadow": "error",
      "no-implicit-globals": "error",
      "no-unused-expressions": ["error", { allowShortCircuit: true, allowTernary: true }],
      "no-restricted-properties": [
        "error",
        { property: "innerHTML", message: "Text of the cluster never becomes HTML: use h() of dom.js." },
        { property: "outerHTML", message: "Text of the cluster never becomes HTML: use h() of dom.js." },
        { property: "insertAdjacentHTML", message: "Text of the cluster never becomes HTML: use h() of dom.js." },
      ],
      "max-lines": ["error", 500],
    },
  },
];
