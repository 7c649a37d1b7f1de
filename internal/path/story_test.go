package path_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMain makes rapid try harder than it does by default. Its flags and environment variables (RAPID_CHECKS,
// RAPID_STEPS) take precedence.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"checks": "400", "steps": "60"} {
		if os.Getenv("RAPID_"+strings.ToUpper(name)) != "" {
			continue
		}
		if err := flag.Set("rapid."+name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

var update = flag.Bool("update", false, "write the actions that the stories lead to into them")

// TestStories plays testdata/stories. Each story tells what happens to a path manager and, indented, what the path
// manager does. testdata/stories/README.md describes the notation.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/stories/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories in testdata/stories (%v)", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			told := string(text)
			played := play(t, told)
			if *update {
				if err := os.WriteFile(file, []byte(played), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(told, "\n"), strings.Split(played, "\n")); diff != "" {
				t.Errorf("-told +played\n%s", diff)
			}
		})
	}
}
