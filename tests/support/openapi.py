"""As much of OpenAPI 3.0 as docs/openapi.json uses: which operations there are, and whether a reply fits its schema."""
METHODS = ("get", "put", "post", "delete", "head", "patch", "options")


class Description:
    def __init__(self, document):
        self.document = document

    def operations(self):
        return {(path, method.upper()) for path, item in self.document["paths"].items() for method in item
                if method in METHODS}

    def path_of(self, target):
        """The path that a target is one of, or None."""
        path = target.partition("?")[0]
        whole, _, last = path.rpartition("/")
        for described in (path, whole + "/{cache_salt}" if last else path):
            if described in self.document["paths"]:
                return described
        return None

    def resolve(self, node):
        while "$ref" in node:
            target = self.document
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            node = target
        return node

    def operation(self, path, method):
        return self.document["paths"][path][method.lower()]

    def is_opened_by(self, scheme, path, method):
        """Whether this alone is enough, or nothing is wanted."""
        security = self.operation(path, method).get("security", self.document["security"])
        return not security or any(set(one) <= {scheme} for one in security)

    def responses(self, path, method):
        return self.operation(path, method)["responses"]

    def example(self, path, method):
        body = self.operation(path, method).get("requestBody")
        return body["content"]["application/json"].get("example") if body else None

    def complaints(self, path, method, reply):
        response = self.responses(path, method).get(str(reply.status))
        if response is None:
            return f"status {reply.status} is not described"
        content = self.resolve(response).get("content")
        if content is None:  # text for people
            return None
        kind = reply.headers.get("Content-Type")
        if kind is None and reply.status in (400, 413, 414):  # not understood: the same
            return None
        if kind not in content:
            return f"Content-Type {kind} is not described"
        if "json" not in kind:
            return None
        return self.mismatch(content[kind]["schema"], reply.json, "reply")

    def mismatch(self, schema, value, where):
        schema = self.resolve(schema)
        if value is None:
            return None if schema.get("nullable") or "type" not in schema else f"{where} is null"
        kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
        kind = schema.get("type")
        if kind and (not isinstance(value, kinds[kind]) or (isinstance(value, bool) and kind != "boolean")):
            return f"{where} is {type(value).__name__}, expected {kind}"
        if "enum" in schema and value not in schema["enum"]:
            return f"{where} is {value!r}, expected one of {schema['enum']}"
        if kind == "object":
            properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
            for name in schema.get("required", []):
                if name not in value:
                    return f"{where} has no {name}"
            for name, part in value.items():
                if name not in properties and more is False:
                    return f"{where} has {name}, which is not described"
                inner = properties.get(name, more if isinstance(more, dict) else {})
                wrong = self.mismatch(inner, part, f"{where}.{name}")
                if wrong:
                    return wrong
        if kind == "array":
            for index, part in enumerate(value):
                wrong = self.mismatch(schema.get("items", {}), part, f"{where}[{index}]")
                if wrong:
                    return wrong
        return None
