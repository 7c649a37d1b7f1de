package page

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// Every field of a row is explained in docs/lab.md.
func TestRowIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/lab.md")
	if err != nil {
		t.Fatal(err)
	}
	row := reflect.TypeFor[Row]()
	for i := range row.NumField() {
		name, _, _ := strings.Cut(row.Field(i).Tag.Get("json"), ",")
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/lab.md does not mention `%s`", name)
		}
	}
}
