// Package tomlfile strictly decodes a TOML file into a struct. Unknown keys, values of the wrong
// type and invalid values are all reported at once, each with its line and with what was probably
// meant or is allowed.
package tomlfile

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// bare matches keys that need no quotes.
var bare = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Decode decodes data into a pointer to a struct with toml tags. name is the file's name in errors. Without a name they
// tell no place, because data is not in a file. The caller may add further problems to the result.
func Decode(name string, data []byte, into any) *Problems {
	p := &Problems{file: name, lines: map[string]int{}, root: reflect.TypeOf(into).Elem()}
	p.decode(data, into)
	return p
}

// Problems collects the errors in a file.
type Problems struct {
	root  reflect.Type
	file  string
	lines map[string]int // line of each key, by its path such as "link[1].rate"
	found []string
}

// Err returns nil, or an error with every problem on a line of its own.
func (p *Problems) Err() error {
	if len(p.found) == 0 {
		return nil
	}
	return errors.New(strings.Join(p.found, "\n"))
}

// At reports a problem with the key at path. For an absent key, the line of its table is used.
func (p *Problems) At(path, format string, args ...any) {
	where, ok := path, false
	line := 0
	for where != "" {
		if line, ok = p.lines[where]; ok {
			break
		}
		where = where[:max(strings.LastIndexByte(where, '.'), 0)]
	}
	place := p.file
	if ok {
		place = fmt.Sprintf("%s:%d", p.file, line)
	}
	p.add(place, path+": "+fmt.Sprintf(format, args...))
}

// add adds a problem at a place in the file.
func (p *Problems) add(place, problem string) {
	if p.file != "" {
		problem = place + ": " + problem
	}
	p.found = append(p.found, problem)
}

// decode decodes data. It first walks the document itself, because the library's messages contain
// Go types, its strict mode suggests no similar key, and it would accept the number 1 for a loss of
// 100 %.
func (p *Problems) decode(data []byte, into any) {
	var syntax map[string]any
	if err := toml.Unmarshal(data, &syntax); err != nil {
		p.library(err)
		return
	}
	p.walk(data)
	if len(p.found) > 0 {
		return
	}
	dec := toml.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		p.library(err)
	}
}

// library reports an error of the TOML library.
func (p *Problems) library(err error) {
	var de *toml.DecodeError
	if !errors.As(err, &de) {
		p.add(p.file, err.Error())
		return
	}
	line, column := de.Position()
	message := strings.TrimPrefix(de.Error(), "toml: ")
	if key := strings.Join(de.Key(), "."); key != "" {
		message = key + ": " + message
	}
	p.add(fmt.Sprintf("%s:%d:%d", p.file, line, column), message)
}

// walk visits every key of a well-formed document, records its line and checks it against the root
// type.
func (p *Problems) walk(data []byte) {
	var parser unstable.Parser
	parser.Reset(data)
	table, tableType := "", p.root
	counts := map[string]int{}
	for parser.NextExpression() {
		switch e := parser.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table, tableType = p.header(&parser, e, counts)
		case unstable.KeyValue:
			p.keyValue(&parser, e, table, tableType)
		}
	}
}

// header enters [a.b] or [[a.b]] and returns its path and type. The type is nil if the table is
// unknown, so that its keys are not reported one by one.
func (p *Problems) header(parser *unstable.Parser, e *unstable.Node, counts map[string]int) (string, reflect.Type) {
	path, t := "", p.root
	keys := e.Key()
	for keys.Next() {
		node := keys.Node()
		t = p.descend(parser, node, &path, t)
		if t == nil {
			return path, nil
		}
		if keys.IsLast() && !p.headerKind(path, e.Kind, t) {
			return path, nil
		}
		if t.Kind() == reflect.Slice {
			if keys.IsLast() && e.Kind == unstable.ArrayTable {
				counts[path]++
			}
			path = fmt.Sprintf("%s[%d]", path, max(counts[path]-1, 0))
			p.lines[path] = parser.Shape(node.Raw).Start.Line
			t = t.Elem()
		}
	}
	return path, t
}

// headerKind checks that a header refers to a table of the right kind.
func (p *Problems) headerKind(path string, kind unstable.Kind, t reflect.Type) bool {
	several := t.Kind() == reflect.Slice && isTable(t.Elem())
	switch {
	case !several && !isTable(t):
		p.At(path, "must be %s, not a table", wants(t))
		return false
	case kind == unstable.Table && several:
		p.At(path, "there may be several of these: write [[%s]]", path)
	case kind == unstable.ArrayTable && !several && t.Kind() != reflect.Interface:
		p.At(path, "there is only one of these: write [%s]", path)
	}
	return true
}

// descend moves from a table of type t to its key, extending path.
func (p *Problems) descend(parser *unstable.Parser, key *unstable.Node, path *string, t reflect.Type) reflect.Type {
	name := string(key.Data)
	full := name
	if !bare.MatchString(name) {
		full = strconv.Quote(name) // as it must be in the file
	}
	if *path != "" {
		full = *path + "." + full
	}
	p.lines[full] = parser.Shape(key.Raw).Start.Line
	*path = full
	switch {
	case !isTable(t):
		p.At(full, "is not a table")
	case t.Kind() == reflect.Map:
		return t.Elem()
	case t.Kind() == reflect.Interface:
		return t
	default:
		fields := fieldTypes(t)
		if ft, ok := fields[name]; ok {
			return ft
		}
		p.At(full, "unknown key%s", Nearest(name, keysOf(fields)))
	}
	return nil
}

func (p *Problems) keyValue(parser *unstable.Parser, e *unstable.Node, path string, t reflect.Type) {
	keys := e.Key()
	for keys.Next() && t != nil {
		t = p.descend(parser, keys.Node(), &path, t)
	}
	if t != nil {
		p.value(parser, e.Value(), path, t)
	}
}

// value checks that a TOML value has the kind required by the Go type.
func (p *Problems) value(parser *unstable.Parser, v *unstable.Node, path string, t reflect.Type) {
	want := wants(t)
	switch {
	case t.Kind() == reflect.Interface:
	case v.Kind == unstable.InlineTable && isTable(t):
		members := v.Children()
		for members.Next() {
			p.keyValue(parser, members.Node(), path, t)
		}
	case v.Kind == unstable.Array && t.Kind() == reflect.Slice:
		elements := v.Children()
		for i := 0; elements.Next(); i++ {
			element := fmt.Sprintf("%s[%d]", path, i)
			p.lines[element] = p.lines[path]
			p.value(parser, elements.Node(), element, t.Elem())
		}
	case v.Kind == unstable.String && isText(t):
		text := reflect.New(t).Interface().(encoding.TextUnmarshaler)
		if err := text.UnmarshalText(v.Data); err != nil {
			p.At(path, "%s", invalid(t, string(v.Data), err))
		}
	case v.Kind == unstable.String && want == aString,
		v.Kind == unstable.Integer && want == aNumber,
		v.Kind == unstable.Bool && want == aBool:
	default:
		p.At(path, "must be %s, not %s", cmp.Or(want, "a table"), describe(v.Kind))
	}
}
