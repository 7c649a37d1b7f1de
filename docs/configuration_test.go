package docs

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/config"
)

var update = flag.Bool("update", false, "write the table of keys in configuration.md anew")

const tableBegins, tableEnds = "<!-- keys -->\n", "<!-- end of keys -->\n"

// The table of keys is that of the configuration's sample: `go test ./docs -run TestConfigurationTable -update`
// writes it.
func TestConfigurationTable(t *testing.T) {
	const name = "configuration.md"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegins)
	_, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table", name)
	}
	want := before + tableBegins + keyTable(t) + tableEnds + after
	if want == string(text) {
		return
	}
	if !*update {
		t.Errorf("the table of keys in %s is old: run go test ./docs -run TestConfigurationTable -update", name)
		return
	}
	if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func keyTable(t *testing.T) string {
	t.Helper()
	texts := sampleTexts(config.Sample)
	var out strings.Builder
	out.WriteString("| key | default | changed by | meaning |\n|---|---|---|---|\n")
	for _, s := range config.Defaults() {
		by := "restart"
		if s.Reload {
			by = "reload"
		}
		text := texts[s.Key]
		if text == "" {
			text = tables[s.Key]
		}
		if text == "" {
			t.Errorf("the sample does not explain %s", s.Key)
		}
		value := s.Value
		if value == `""` || value == "[]" && tables[s.Key] != "" {
			value = ""
		}
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", s.Key, value, by, strings.ReplaceAll(text, "|", `\|`))
	}
	return out.String()
}

// tables are the keys that stand for tables that may be repeated.
var tables = map[string]string{
	"policy":                    "`[[policy]]`, how some connections use their paths; see [policies.md](policies.md)",
	"client.waypoint":           "`[[client.waypoint]]`, one for each waypoint to use: `name`, as in its certificate; `addresses`, IPv4 and IPv6; `port`, 45672 by default",
	"client.converter.incoming": "`[[client.converter.incoming]]`, one for each port of a converter at which it takes connections for a service of this host ([converter.md](converter.md#incoming-connections)): `converter`, the member; `port`, the converter's; `to`, the service's address and port",
	"waypoint.member":           "`[[waypoint.member]]`, further limits of one member, within those of all ([security.md](security.md#limits-of-one-member)): `name`, `only`, `deny`, `ports`, `hours`, `monthly_quota`",
	"congestion":                "`[[congestion]]`, congestion control of this host's connections ([options.md](options.md)): `use`, `cgroup`, `ports`, `networks`",
}

var (
	sampleTable = regexp.MustCompile(`^\[([a-z_.]+)\]`)
	sampleKey   = regexp.MustCompile(`^([a-z_0-9]+)\s*=\s*(?:"[^"]*"|\[[^\]]*\]|\S+)\s*(?:#\s*(.*))?$`)
)

// sampleTexts returns the comments on each key: those above it and the one behind it. A key without any shares those of
// the key above it.
func sampleTexts(sample string) map[string]string {
	texts := make(map[string]string)
	prefix, last := "", ""
	var above []string
	for line := range strings.Lines(sample) {
		line = strings.TrimSpace(line)
		if m := sampleTable.FindStringSubmatch(line); m != nil {
			prefix, above, last = m[1]+".", nil, ""
		} else if strings.HasPrefix(line, "[[") {
			prefix, above, last = "-", nil, "" // see tables
		} else if comment, ok := strings.CutPrefix(line, "#"); ok {
			if last != "" { // of another key
				above, last = nil, ""
			}
			above = append(above, strings.TrimSpace(comment))
		} else if m := sampleKey.FindStringSubmatch(line); m != nil {
			block := strings.Join(above, " ")
			switch {
			case m[2] == "":
				texts[prefix+m[1]] = block
			case last == "" || prefix == "options.":
				texts[prefix+m[1]] = strings.TrimSpace(block + " " + m[2])
			default: // the block above is about earlier keys
				texts[prefix+m[1]] = m[2]
			}
			last = m[1]
		} else {
			above, last = nil, ""
		}
	}
	return texts
}
