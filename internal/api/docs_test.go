package api

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// Every field of the schema is in docs/cli.md, and full has every field.
func TestEveryFieldIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(doc), "\n## dcol status\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !found {
		t.Fatal("docs/cli.md has no section on dcol status")
	}
	data, err := json.Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	var visit func(path string, v any)
	visit = func(path string, v any) {
		switch v := v.(type) {
		case []any:
			if len(v) == 0 {
				t.Errorf("full has no %s", path)
			}
			for _, e := range v {
				visit(path, e)
			}
		case map[string]any:
			if path == ".serving.refused" || path == ".collective.ignored" { // a number for each reason
				return
			}
			for key, e := range v {
				if !strings.Contains(section, "`"+key+"`") && !strings.Contains(section, "."+key+"`") && !strings.Contains(section, key+"[]`") {
					t.Errorf("docs/cli.md does not explain %s.%s", path, key)
				}
				visit(path+"."+key, e)
			}
		default:
			if v == nil || v == "" || v == 0.0 {
				t.Errorf("full has no %s", path)
			}
		}
	}
	visit("", fields)
}
