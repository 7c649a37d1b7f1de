package config

import (
	"errors"
	"fmt"
	"io/fs"
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

// Assignment gives a key a new value, which is TOML, or the text of a string without its quotes.
type Assignment struct{ Key, Value string }

// SetConverterUse changes client.converter.use in the file at path, and nothing else.
func SetConverterUse(path string, use UseConverter) error {
	_, err := Set(path, []Assignment{{"client.converter.use", string(use)}}, func(*Config) error { return nil })
	return err
}

// Set changes keys in the file at path, all of them or none. Other lines and comments stay. Set writes nothing unless the
// result parses and check accepts it. It returns a change for each assignment; From and To are equal if the file already
// had the value.
func Set(path string, list []Assignment, check func(*Config) error) ([]Change, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noFile(path)
	}
	if err != nil {
		return nil, changing(path, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, changing(path, err)
	}
	before, err := Parse(path, text)
	if err != nil {
		return nil, fmt.Errorf("change the configuration: %w", err)
	}
	list, err = before.assignable(path, list)
	if err != nil {
		return nil, err
	}
	changed := string(text)
	for _, a := range list {
		changed = setKey(changed, a.Key, a.Value)
	}
	// The agent must read the changed text as meant. Otherwise nothing is written.
	after, err := decode("", []byte(changed))
	if err != nil {
		err = fmt.Errorf("%w%s", err, togetherHint(after.Client.Budget, list))
	} else {
		err = check(after)
	}
	if err != nil {
		return nil, fmt.Errorf("the configuration is not changed, because it would be wrong: %w", err)
	}
	changes, err := before.changesTo(after, list)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be changed by this command: %w", path, err)
	}
	if changed == string(text) {
		return changes, nil
	}
	if err := durable.Replace(path, []byte(changed), info.Mode().Perm()); err != nil {
		return nil, changing(path, err)
	}
	return changes, nil
}

// assignable returns the assignments with their values in TOML, or an error that says which of them is impossible. path is
// that of the file, for errors.
func (c *Config) assignable(path string, list []Assignment) ([]Assignment, error) {
	inTOML := make([]Assignment, 0, len(list))
	for _, a := range list {
		old, err := c.Setting(a.Key)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(inTOML, func(b Assignment) bool { return b.Key == a.Key }) {
			return nil, fmt.Errorf("%s is given two values", a.Key)
		}
		if old.repeated {
			return nil, fmt.Errorf("%s is a table that may be repeated: change it in %s with an editor", a.Key, path)
		}
		if old.text && !isTOML(a.Value) {
			a.Value = strconv.Quote(a.Value)
		}
		switch {
		case old.list() && (!isTOML(a.Value) || !strings.HasPrefix(a.Value, "[")):
			return nil, fmt.Errorf("%s is a list of %s", a.Key, old.listHint(list, a))
		case !isTOML(a.Value):
			return nil, fmt.Errorf("%s: %s is no value of TOML, such as 3, true or [443, 8443]", a.Key, a.Value)
		}
		inTOML = append(inTOML, a)
	}
	return inTOML, nil
}

// changesTo returns the change for each assignment that led from c to after. The error says which key differs otherwise.
func (c *Config) changesTo(after *Config, list []Assignment) (changes []Change, err error) {
	differ := c.Differences(after)
	for _, a := range list {
		old, err := c.Setting(a.Key)
		if err != nil {
			return nil, err
		}
		now, err := after.Setting(a.Key)
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(differ, func(d Change) bool { return d.Key == a.Key })
		if at < 0 && !isSame(old, a.Value) {
			return nil, fmt.Errorf("change %s in it with an editor", a.Key)
		}
		if at >= 0 {
			differ = slices.Delete(differ, at, at+1)
		}
		changes = append(changes, Change{Key: a.Key, From: old.Value, To: now.Value, Reload: now.Reload})
	}
	if len(differ) > 0 {
		return nil, fmt.Errorf("%s would change, too: use an editor", differ[0].Key)
	}
	return changes, nil
}

// listHint returns the rest of the sentence "KEY is a list of" about an assignment whose value is not a list: the ready
// command, with the whole list of assignments, or an example.
func (s Setting) listHint(list []Assignment, wrong Assignment) string {
	words := wordsOf(wrong.Value)
	kind, value := "strings", tomlfile.List(words)
	if s.numbers {
		kind, value = "whole numbers", "["+strings.Join(words, ", ")+"]"
		if slices.ContainsFunc(words, func(w string) bool { _, err := strconv.Atoi(w); return err != nil }) {
			return kind + ", such as '[443, 8443]'"
		}
	}
	list = slices.Clone(list)
	list[slices.Index(list, wrong)].Value = value
	return kind + ": " + setCommand(list)
}

// wordsOf returns the words of a text. Commas, brackets and quotes separate words, like spaces.
func wordsOf(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`,[]'"`, r) })
}

// togetherHint returns the end of a sentence that shows how to set the two keys of the metered budget at once, which need
// each other. It is empty unless exactly one of them was set.
func togetherHint(b Budget, list []Assignment) string {
	const amount, interfaces = "client.budget.metered", "client.budget.metered_interfaces"
	sets := func(key string) bool {
		return slices.ContainsFunc(list, func(a Assignment) bool { return a.Key == key })
	}
	if sets(amount) == sets(interfaces) || (b.Metered > 0) == (len(b.Interfaces) > 0) {
		return ""
	}
	var other Assignment
	switch {
	case sets(amount) && b.Metered > 0:
		other = Assignment{interfaces, `["wwan0"]`}
	case sets(amount):
		other = Assignment{interfaces, "[]"}
	case len(b.Interfaces) > 0:
		other = Assignment{amount, "1GB"}
	default:
		other = Assignment{amount, "unlimited"}
	}
	return "; set both at once: " + setCommand(append(slices.Clone(list), other))
}

// setCommand returns the command for assignments, quoted for a shell.
func setCommand(list []Assignment) string {
	var b strings.Builder
	b.WriteString("dcol config set")
	for _, a := range list {
		value := a.Value
		if raw, err := strconv.Unquote(value); err == nil {
			value = raw
		}
		if !plainWord.MatchString(value) {
			value = "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
		}
		b.WriteString(" " + a.Key + " " + value)
	}
	return b.String()
}

// plainWord matches words that a shell takes as they are.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@%+-]+$`)

// changing explains an error of reading or writing the file at path. Operators may use the agent, but not change its file.
func changing(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("this user may not change the configuration %s: run this as root: %w", path, fs.ErrPermission)
	}
	return fmt.Errorf("change the configuration: %w", err)
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
