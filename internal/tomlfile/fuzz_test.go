package tomlfile

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Whatever the bytes, the outcome is a value or problems that a person who knows
// nothing of Go can find: one a line, each with the file's name and a line it has.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		"name = \"a\"\ncolour = \"red\"\n[[room]]\n[[room.door]]\nwide = true\n",
		"garden = { trees = 1 }\nports = [1, 2]\n",
		"[notes]\n\"a b\" = 'c'\n",
		"room = [{ name = \"a\", door = [{}] }]\n",
		"[home]\n", "name.first = 1\n", "\"a\\nb\" = 1\n",
	} {
		f.Add([]byte(text))
	}
	place := regexp.MustCompile(`^fuzz\.toml(?::([0-9]+)(?::[0-9]+)?)?: `)
	f.Fuzz(func(t *testing.T, data []byte) {
		err := Decode("fuzz.toml", data, new(house)).Err()
		if err == nil {
			return
		}
		for problem := range strings.SplitSeq(err.Error(), "\n") {
			m := place.FindStringSubmatch(problem)
			if m == nil {
				t.Fatalf("a problem without a place: %q", problem)
			}
			if line, _ := strconv.Atoi(m[1]); m[1] != "" && (line < 1 || line > 1+strings.Count(string(data), "\n")) {
				t.Errorf("there is no such line: %q", problem)
			}
			if strings.Contains(problem, "tomlfile.") || strings.Contains(problem, "reflect") {
				t.Errorf("a problem in the words of Go: %q", problem)
			}
		}
	})
}
