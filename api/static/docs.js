// The API's documentation, drawn by Swagger UI from openapi.json.
SwaggerUIBundle({ url: 'openapi.json', dom_id: '#described', deepLinking: true, docExpansion: 'list',
  defaultModelsExpandDepth: 0, presets: [SwaggerUIBundle.presets.apis] });
