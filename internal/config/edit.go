package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/detour-collective/dcol/internal/tomlfile"
)

// tableLine matches a table's header.
var tableLine = regexp.MustCompile(`^\s*\[+\s*([^\]]*?)\s*\]+`)

// keyLine matches the beginning of a key's line.
var keyLine = regexp.MustCompile(`^\s*([A-Za-z0-9_-]+)\s*=\s*`)

// Setting returns the setting with a key. The error names those that may have been meant.
func (c *Config) Setting(key string) (Setting, error) {
	all := c.Settings()
	if i := slices.IndexFunc(all, func(s Setting) bool { return s.Key == key }); i >= 0 {
		return all[i], nil
	}
	if len(c.Section(key)) > 0 {
		return Setting{}, fmt.Errorf("%q is a section of the configuration, not a key; dcol config get %s shows its keys", key, key)
	}
	return Setting{}, fmt.Errorf("%q is not a key of the configuration%s", key, meant(key, all))
}

// Section returns the settings below a section such as "client". There are none if it does not exist.
func (c *Config) Section(name string) (list []Setting) {
	for _, s := range c.Settings() {
		if strings.HasPrefix(s.Key, name+".") {
			list = append(list, s)
		}
	}
	return list
}

// meant returns the end of a sentence that names the keys and sections that may have been meant by a word that is none.
// They are few, because the configuration has about a hundred.
func meant(word string, all []Setting) string {
	const most = 3
	var names []string
	byEnd := make(map[string][]string) // by the last part of the name
	for _, s := range all {
		for name := s.Key; name != ""; {
			section, end := cutLast(name)
			if !slices.Contains(names, name) {
				names = append(names, name)
				byEnd[end] = append(byEnd[end], name)
			}
			name = section
		}
	}
	near := tomlfile.Near(word, names)
	_, end := cutLast(word)
	for _, e := range tomlfile.Near(end, slices.Sorted(maps.Keys(byEnd))) {
		for _, name := range byEnd[e] {
			if !slices.Contains(near, name) {
				near = append(near, name)
			}
		}
	}
	if len(near) == 0 {
		return "; dcol config get lists all"
	}
	var quoted []string
	for _, name := range near[:min(len(near), most)] {
		quoted = append(quoted, strconv.Quote(name))
	}
	return fmt.Sprintf("; did you mean %s?", strings.Join(quoted, " or "))
}

// cutLast cuts a key into its section, which may be empty, and its name there.
func cutLast(key string) (section, name string) {
	if at := strings.LastIndexByte(key, '.'); at >= 0 {
		return key[:at], key[at+1:]
	}
	return "", key
}

// setKey changes the value of the key if the text has it. Otherwise it adds a line below the header of the key's table,
// or adds the table.
func setKey(text, key, value string) string {
	wanted, name := cutLast(key)
	lines := strings.Split(text, "\n")
	table, header := "", -1
	for i := 0; i < len(lines); i++ {
		if m := tableLine.FindStringSubmatch(lines[i]); m != nil {
			if table = strings.ReplaceAll(m[1], " ", ""); table == wanted {
				header = i
			}
			continue
		}
		m := keyLine.FindStringSubmatch(lines[i])
		if m == nil {
			continue
		}
		count := statement(lines[i:])
		if table == wanted && m[1] == name {
			line := m[0] + value + comment(lines[i:i+count])
			return strings.Join(slices.Replace(lines, i, i+count, line), "\n")
		}
		i += count - 1
	}
	added := name + " = " + value
	switch {
	case wanted == "":
		return added + "\n" + text
	case header >= 0:
		return strings.Join(slices.Insert(lines, header+1, added), "\n")
	}
	return strings.TrimRight(text, "\n") + fmt.Sprintf("\n\n[%s]\n%s\n", wanted, added)
}

// statement returns the number of lines of the value that begins in the first one.
func statement(lines []string) int {
	for n := 1; n <= len(lines); n++ {
		var all map[string]any
		if toml.Unmarshal([]byte(strings.Join(lines[:n], "\n")+"\n"), &all) == nil {
			return n
		}
	}
	return 1
}

// comment returns the comment after a value, including the space before it.
func comment(lines []string) string {
	text := strings.Join(lines, "\n")
	last := lines[len(lines)-1]
	before := len(text) - len(last)
	for i, c := range last {
		var all map[string]any
		if c == '#' && toml.Unmarshal([]byte(text[:before+i]+"\n"), &all) == nil {
			trimmed := strings.TrimRight(last[:i], " \t")
			return last[len(trimmed):]
		}
	}
	return ""
}
