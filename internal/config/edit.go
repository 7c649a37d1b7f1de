package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/pelletier/go-toml/v2"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/tomlfile"
)

// tableLine matches a table's header.
var tableLine = regexp.MustCompile(`^\s*\[+\s*([^\]]*?)\s*\]+`)

// keyLine matches the beginning of a key's line.
var keyLine = regexp.MustCompile(`^\s*([A-Za-z0-9_-]+)\s*=\s*`)

// SetConverterUse changes client.converter.use in the file at path, and nothing else.
func SetConverterUse(path string, use UseConverter) error {
	_, err := Set(path, "client.converter.use", string(use), func(*Config) error { return nil })
	return err
}

// Set changes one key in the file at path. Other lines and comments stay. value is TOML, or the text of a string
// without its quotes. Set writes nothing unless the result parses and check accepts it. It returns the change; From and
// To are equal if the file already had the value.
func Set(path, key, value string, check func(*Config) error) (Change, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Change{}, noFile(path)
	}
	if err != nil {
		return Change{}, changing(path, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Change{}, changing(path, err)
	}
	before, err := Parse(path, text)
	if err != nil {
		return Change{}, fmt.Errorf("change the configuration: %w", err)
	}
	old, err := before.Setting(key)
	if err != nil {
		return Change{}, err
	}
	if old.repeated {
		return Change{}, fmt.Errorf("%s is a table that may be repeated: change it in %s with an editor", key, path)
	}
	if old.text && !isTOML(value) {
		value = strconv.Quote(value)
	}
	if !isTOML(value) && old.texts {
		return Change{}, fmt.Errorf("%s is a list of strings: dcol config set %s '%s'", key, key, listOf(value))
	}
	if !isTOML(value) {
		return Change{}, fmt.Errorf("%s: %s is no value of TOML, such as 3, true or [443, 8443]", key, value)
	}
	changed := setKey(string(text), key, value)
	// The agent must read the changed text as meant. Otherwise nothing is written.
	after, err := Parse(path, []byte(changed))
	if err == nil {
		err = check(after)
	}
	if err != nil {
		return Change{}, fmt.Errorf("the configuration is not changed, because it would be wrong: %w", err)
	}
	now, err := after.Setting(key)
	if err != nil {
		return Change{}, err
	}
	only := before.Differences(after)
	same := len(only) == 0 && isSame(old, value)
	if !same && (len(only) != 1 || only[0].Key != key) {
		return Change{}, fmt.Errorf("%s cannot be changed by this command: change %s in it with an editor", path, key)
	}
	change := Change{Key: key, From: old.Value, To: now.Value, Reload: now.Reload}
	if changed == string(text) {
		return change, nil
	}
	if err := durable.Replace(path, []byte(changed), info.Mode().Perm()); err != nil {
		return Change{}, changing(path, err)
	}
	return change, nil
}

// listOf returns the words of a text as a list in TOML. Commas, brackets and quotes separate words, like spaces.
func listOf(text string) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`,[]'"`, r) })
	return tomlfile.List(words)
}

// changing explains an error of reading or writing the file at path. Operators may use the agent, but not change its file.
func changing(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("this user may not change the configuration %s: run this as root: %w", path, fs.ErrPermission)
	}
	return fmt.Errorf("change the configuration: %w", err)
}

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

// isSame reports whether a setting has the value already.
func isSame(s Setting, value string) bool {
	var ours, other map[string]any
	if toml.Unmarshal([]byte("v = "+s.Value), &ours) != nil || toml.Unmarshal([]byte("v = "+value), &other) != nil {
		return false
	}
	return fmt.Sprint(ours) == fmt.Sprint(other)
}

// isTOML reports whether a text is a single TOML value without a comment.
func isTOML(value string) bool {
	var all map[string]any
	return toml.Unmarshal([]byte("v = "+value+"\n"), &all) == nil && len(all) == 1 && toml.Unmarshal([]byte("v = ["+value+"]\n"), &all) == nil
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
