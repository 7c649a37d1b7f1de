package tomlfile

import (
	"cmp"
	"encoding"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// Descriptions of the plain kinds.
const (
	aString = "a string in quotes"
	aNumber = "a whole number"
	aBool   = "true or false"
)

// fieldTypes returns the types of a table's keys, without pointers and with embedded structs
// flattened, as in TOML.
func fieldTypes(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			for k, v := range fieldTypes(f.Type) {
				fields[k] = v
			}
			continue
		}
		if key := f.Tag.Get("toml"); key != "" {
			ft := f.Type
			if ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			fields[key] = ft
		}
	}
	return fields
}

func keysOf(fields map[string]reflect.Type) []string {
	keys := make([]string, 0, len(fields))
	for k := range fields {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// Keys returns all keys of a struct's format, such as "link.rate", for checking documentation.
func Keys(root reflect.Type) []string {
	var keys []string
	var visit func(prefix string, t reflect.Type)
	visit = func(prefix string, t reflect.Type) {
		for name, ft := range fieldTypes(t) {
			keys = append(keys, prefix+name)
			if ft.Kind() == reflect.Slice {
				ft = ft.Elem()
			}
			if ft.Kind() == reflect.Struct && isTable(ft) {
				visit(prefix+name+".", ft)
			}
		}
	}
	visit("", root)
	sort.Strings(keys)
	return keys
}

func isText(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// isTable reports whether a type has keys of its own.
func isTable(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		return !isText(t)
	case reflect.Map, reflect.Interface:
		return true
	default:
		return false
	}
}

// wants describes a value of the type, using its Form method if there is one. It is empty for a
// table.
func wants(t reflect.Type) string {
	if v, ok := reflect.Zero(t).Interface().(interface{ Form() string }); ok {
		return v.Form()
	}
	if isText(t) {
		return aString
	}
	switch t.Kind() {
	case reflect.String:
		return aString
	case reflect.Int, reflect.Int64, reflect.Uint32:
		return aNumber
	case reflect.Bool:
		return aBool
	case reflect.Slice:
		switch e := t.Elem(); {
		case isTable(e):
			return "a list of tables"
		case wants(e) == aNumber:
			return "a list of whole numbers"
		default:
			return "a list of strings"
		}
	default:
		return ""
	}
}

// invalid returns what is wrong with a text that is no value of a type, or err's own words. The errors of net/netip name
// functions of Go.
func invalid(t reflect.Type, text string, err error) string {
	var form string
	switch t {
	case reflect.TypeFor[netip.Addr]():
		form = `an IP address, such as "192.0.2.1" or "2001:db8::1"`
	case reflect.TypeFor[netip.Prefix]():
		form = `a network, such as "192.0.2.0/24" or "2001:db8::/32"`
	case reflect.TypeFor[netip.AddrPort]():
		form = `an IP address with a port, such as "192.0.2.1:80" or "[2001:db8::1]:80"`
	default:
		return err.Error()
	}
	return fmt.Sprintf("%q is not %s", text, form)
}

func describe(k unstable.Kind) string {
	switch k {
	case unstable.String:
		return "a string"
	case unstable.Integer:
		return "a whole number"
	case unstable.Float:
		return "a number with a fraction"
	case unstable.Bool:
		return "true or false"
	case unstable.Array:
		return "a list"
	case unstable.InlineTable:
		return "a table"
	default:
		return "a date"
	}
}

// List returns words as a list of strings in TOML, on one line.
func List(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = strconv.Quote(w)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// Nearest returns the end of a sentence that names the known word closest to word, or all known
// words if none is close.
func Nearest(word string, known []string) string {
	return cmp.Or(Suggestion(word, known), "; known here: "+strings.Join(known, ", "))
}

// Suggestion returns the end of a sentence that names the known word closest to word. It is empty if none is close.
func Suggestion(word string, known []string) string {
	if near := Near(word, known); len(near) > 0 {
		return fmt.Sprintf("; did you mean %q?", near[0])
	}
	return ""
}

// Near returns the known words that may have been meant, the closest first.
func Near(word string, known []string) (near []string) {
	distances := make(map[string]int)
	for _, k := range known {
		if d := editDistance(word, k); d <= max(len(word), 3)/3 {
			distances[k] = d
			near = append(near, k)
		}
	}
	slices.SortStableFunc(near, func(a, b string) int { return distances[a] - distances[b] })
	return near
}

// editDistance counts insertions, deletions, substitutions and swaps of
// neighbours between a and b (optimal string alignment).
func editDistance(a, b string) int {
	before, last := []int{}, make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(row[j]+1, last[j+1]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = slices.Clone(last), row
	}
	return last[len(b)]
}
