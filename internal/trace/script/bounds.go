package script

import (
	"fmt"
	"reflect"
	"strings"
	"sync"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/ast"
	"github.com/yuin/gopher-lua/parse"
	"github.com/yuin/gopher-lua/pm"
)

// watchMemory sees an instruction's allocations only after the instruction has ended. So no single
// instruction may allocate much: bounded functions replace the library's functions that make long strings of
// short ones, and the operator `..`.
const (
	longestString = 16 << 20 // bytes, that a script makes
	longestRepeat = 1 << 20  // bytes, that string.rep makes
	longestSearch = 1 << 20  // bytes, in which all matches of a pattern are looked for
	mostArray     = 1 << 20  // elements between which gaps of a table take memory
)

// boundTables keeps `t[67000000] = 1` from allocating all elements before. It is a setting of the library.
var boundTables = sync.OnceFunc(func() { lua.MaxArrayIndex = mostArray })

// bound replaces functions of the library.
func (s *session) bound() {
	boundTables()
	l := s.lua
	texts, tables := l.GetGlobal(lua.StringLibName), l.GetGlobal(lua.TabLibName)
	search := l.GetField(texts, "gmatch")
	format, concat := l.GetField(texts, "format").(*lua.LFunction), l.GetField(tables, "concat").(*lua.LFunction)
	l.SetField(texts, "rep", l.NewFunction(s.repeat))
	l.SetField(texts, "gsub", l.NewFunction(s.substitute))
	l.SetField(texts, "format", l.NewFunction(func(*lua.LState) int { return s.format(format.GFunction) }))
	gmatch := l.NewFunction(func(l *lua.LState) int {
		s.checkSearch(l.CheckString(1))
		l.Insert(search, 1)
		l.Call(l.GetTop()-1, lua.MultRet)
		return l.GetTop()
	})
	l.SetField(texts, "gmatch", gmatch)
	l.SetField(texts, "gfind", gmatch)
	l.SetField(tables, "concat", l.NewFunction(func(*lua.LState) int { return s.concatTable(concat.GFunction) }))
	l.SetGlobal(concatOperator, l.NewFunction(s.concat))
}

// makes ends the script if it is about to make a string that is too long.
func (s *session) makes(bytes int) {
	if bytes <= longestString {
		return
	}
	s.cancel(fmt.Errorf("%w: a string of %d bytes, at most %d are possible", ErrMemory, bytes, longestString))
	s.lua.RaiseError("a string has at most %d bytes", longestString)
}

// repeat is string.rep with a bound.
func (*session) repeat(l *lua.LState) int {
	text, n := l.CheckString(1), l.CheckInt(2)
	if n < 0 {
		n = 0
	}
	if len(text) > 0 && n > longestRepeat/len(text) {
		l.RaiseError("string.rep makes at most %d bytes", longestRepeat)
	}
	l.Push(lua.LString(strings.Repeat(text, n)))
	return 1
}

func (s *session) checkSearch(text string) {
	if len(text) > longestSearch {
		s.lua.RaiseError("all matches can be found in at most %d bytes", longestSearch)
	}
}

// substitute is string.gsub with a bound. The library's takes time by the square of the length.
func (s *session) substitute(l *lua.LState) int {
	text, pattern := l.CheckString(1), l.CheckString(2)
	l.CheckTypes(3, lua.LTString, lua.LTNumber, lua.LTTable, lua.LTFunction)
	s.checkSearch(text)
	matches, err := pm.Find(pattern, []byte(text), 0, l.OptInt(4, -1))
	if err != nil {
		l.RaiseError("%v", err)
	}
	var b strings.Builder
	at := 0
	for _, m := range matches {
		from, to := m.Capture(0), m.Capture(1)
		b.WriteString(text[at:from])
		b.WriteString(s.replacement(text, m, l.Get(3)))
		at = to
		s.makes(b.Len())
	}
	b.WriteString(text[at:])
	l.Push(lua.LString(b.String()))
	l.Push(lua.LNumber(len(matches)))
	return 2
}

// replacement returns the text that replaces a match m in text.
func (s *session) replacement(text string, m *pm.MatchData, with lua.LValue) string {
	whole := text[m.Capture(0):m.Capture(1)]
	var got lua.LValue
	switch with := with.(type) {
	case *lua.LTable:
		got = s.lua.GetTable(with, s.capture(text, m, 1))
	case *lua.LFunction:
		s.lua.Push(with)
		n := max(1, m.CaptureLength()/2-1)
		for i := range n {
			s.lua.Push(s.capture(text, m, i+1))
		}
		s.lua.Call(n, 1)
		got = s.lua.Get(-1)
		s.lua.Pop(1)
	default:
		return s.expand(text, m, with.String())
	}
	switch {
	case lua.LVIsFalse(got):
		return whole
	case !lua.LVCanConvToString(got):
		s.lua.RaiseError("a match cannot be replaced by a %s", got.Type())
	}
	return lua.LVAsString(got)
}

// expand puts captures into a replacement: %1 to %9, and %0 for the whole match.
func (s *session) expand(text string, m *pm.MatchData, with string) string {
	var b strings.Builder
	for i := 0; i < len(with); i++ {
		c := with[i]
		if c != '%' || i+1 == len(with) {
			b.WriteByte(c)
			continue
		}
		i++
		if c = with[i]; c < '0' || c > '9' {
			b.WriteByte(c)
			continue
		}
		b.WriteString(s.capture(text, m, int(c-'0')).String())
		s.makes(b.Len())
	}
	return b.String()
}

// capture returns the n-th capture of a match. Number 0 is the whole match, and so is number 1
// if there are no captures.
func (s *session) capture(text string, m *pm.MatchData, n int) lua.LValue {
	i := 2 * n
	if n == 1 && m.CaptureLength() == 2 {
		i = 0
	}
	if i >= m.CaptureLength() {
		s.lua.RaiseError("invalid capture index")
	}
	if m.IsPosCapture(i) {
		return lua.LNumber(m.Capture(i))
	}
	return lua.LString(text[m.Capture(i):m.Capture(i+1)])
}

// format is string.format with Lua's own bound of widths: two digits.
func (s *session) format(original lua.LGFunction) int {
	l := s.lua
	pattern, digits, verb := l.CheckString(1), 0, false
	for _, c := range []byte(pattern) {
		switch {
		case c == '%':
			verb, digits = !verb, 0
		case verb && c >= '0' && c <= '9':
			if digits++; digits > 2 {
				l.RaiseError("a width in a format has at most two digits")
			}
		case verb && (c == '[' || c == '*'):
			l.RaiseError("a format cannot have %q", string(c))
		case verb && (c == '.' || c == '-' || c == '+' || c == ' ' || c == '#'):
			digits = 0
		default:
			verb = false
		}
	}
	const widest = 100
	size := len(pattern) + widest*strings.Count(pattern, "%")
	for i := 2; i <= l.GetTop(); i++ {
		size += len(l.Get(i).String())
	}
	s.makes(size)
	return original(l)
}

// concatTable is table.concat with a bound.
func (s *session) concatTable(original lua.LGFunction) int {
	l := s.lua
	table, separator := l.CheckTable(1), len(l.OptString(2, ""))
	size := 0
	for i := max(1, l.OptInt(3, 1)); i <= min(table.Len(), l.OptInt(4, table.Len())); i++ {
		size += len(table.RawGetInt(i).String()) + separator
		s.makes(size)
	}
	return original(l)
}

// concatOperator is the function that takes the place of the operator `..`. No script can write its name.
const concatOperator = ".."

// load is l.Load, with the operator replaced.
func (s *session) load(name, code string) (*lua.LFunction, error) {
	chunk, err := parse.Parse(strings.NewReader(code), name)
	if err != nil {
		return nil, err
	}
	replaceConcat(reflect.ValueOf(chunk))
	proto, err := lua.Compile(chunk, name)
	if err != nil {
		return nil, err
	}
	return s.lua.NewFunctionFromProto(proto), nil
}

// replaceConcat replaces each `..` in a part of a syntax tree by a call.
func replaceConcat(v reflect.Value) {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			replaceConcat(v.Index(i))
		}
	case reflect.Pointer:
		replaceConcat(v.Elem()) // an invalid value has no kind
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				replaceConcat(v.Field(i))
			}
		}
	case reflect.Interface:
		if e, ok := v.Interface().(*ast.StringConcatOpExpr); ok {
			v.Set(reflect.ValueOf(concatCall(e)))
		}
		replaceConcat(v.Elem())
	}
}

// concatCall makes a call of all operands of `a .. b .. c`.
func concatCall(e *ast.StringConcatOpExpr) *ast.FuncCallExpr {
	name := &ast.IdentExpr{Value: concatOperator}
	name.SetLine(e.Line())
	call := &ast.FuncCallExpr{Func: name, AdjustRet: true}
	call.SetLine(e.Line())
	for {
		call.Args = append(call.Args, single(e.Lhs))
		next, more := e.Rhs.(*ast.StringConcatOpExpr)
		if !more {
			call.Args = append(call.Args, single(e.Rhs))
			return call
		}
		e = next
	}
}

// single has an operand be one value. As the last argument of a call, another call or `...` would be all its values.
func single(e ast.Expr) ast.Expr {
	switch e := e.(type) {
	case *ast.FuncCallExpr:
		e.AdjustRet = true
	case *ast.Comma3Expr:
		e.AdjustRet = true
	}
	return e
}

// concat joins its arguments, from the right as the operator does.
func (s *session) concat(l *lua.LState) int {
	top := l.GetTop()
	result := l.Get(top)
	for i := top - 1; i >= 1; i-- {
		left := l.Get(i)
		if lua.LVCanConvToString(left) && lua.LVCanConvToString(result) {
			from := i
			for from > 1 && lua.LVCanConvToString(l.Get(from-1)) {
				from--
			}
			result, i = s.joined(from, i, result), from
			continue
		}
		join := l.GetMetaField(left, "__concat")
		if join == lua.LNil {
			join = l.GetMetaField(result, "__concat")
		}
		if join.Type() != lua.LTFunction {
			l.RaiseError("cannot perform concat operation between %v and %v", left.Type(), result.Type())
		}
		l.Push(join)
		l.Push(left)
		l.Push(result)
		l.Call(2, 1)
		result = l.Get(-1)
		l.Pop(1)
	}
	l.Push(result)
	return 1
}

// joined joins arguments that are strings or numbers, and what is behind them.
func (s *session) joined(from, to int, behind lua.LValue) lua.LValue {
	parts, size := make([]string, 0, to-from+2), 0
	for i := from; i <= to; i++ {
		parts = append(parts, lua.LVAsString(s.lua.Get(i)))
	}
	parts = append(parts, lua.LVAsString(behind))
	for _, p := range parts {
		size += len(p)
	}
	s.makes(size)
	return lua.LString(strings.Join(parts, ""))
}
