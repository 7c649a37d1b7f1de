package script

import (
	"fmt"

	lua "github.com/yuin/gopher-lua"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace/compare"
	"github.com/detour-collective/dcol/internal/trace/present"
	"github.com/detour-collective/dcol/internal/trace/probe"
)

// types defines the methods of packets, TCP headers, changes and filters.
func (s *session) types() {
	l := s.lua
	packets := l.NewTypeMetatable(typePacket)
	join := l.NewFunction(s.join)
	for _, operator := range []string{"__div", "__add", "__concat"} {
		l.SetField(packets, operator, join)
	}
	l.SetField(packets, "__tostring", l.NewFunction(func(l *lua.LState) int {
		l.Push(lua.LString(present.ProbeText(s.packet())))
		return 1
	}))
	l.SetField(packets, "__index", l.SetFuncs(l.NewTable(), map[string]lua.LGFunction{
		"source":      func(l *lua.LState) int { return text(l, s.packet().Src().String()) },
		"destination": func(l *lua.LState) int { return text(l, s.packet().Dst().String()) },
		"payload":     func(l *lua.LState) int { return text(l, string(s.packet().Payload)) },
		"has":         s.has,
		"tcp": func(l *lua.LState) int {
			p := s.packet()
			if p.TCP == nil {
				l.Push(lua.LNil)
			} else {
				l.Push(s.wrap(typeTCP, p.TCP))
			}
			return 1
		},
	}))

	numbers := map[string]func(h *packet.TCP) uint32{
		"getsource": func(h *packet.TCP) uint32 { return uint32(h.SrcPort) },
		"getdest":   func(h *packet.TCP) uint32 { return uint32(h.DstPort) },
		"getseq":    func(h *packet.TCP) uint32 { return h.Seq },
		"getack":    func(h *packet.TCP) uint32 { return h.Ack },
		"getflags":  func(h *packet.TCP) uint32 { return uint32(h.Flags) },
		"getwindow": func(h *packet.TCP) uint32 { return uint32(h.Window) },
	}
	methods := map[string]lua.LGFunction{}
	for name, read := range numbers {
		methods[name] = func(l *lua.LState) int {
			h, ok := l.CheckUserData(1).Value.(*packet.TCP)
			if !ok {
				l.ArgError(1, "a TCP header is needed here")
			}
			l.Push(lua.LNumber(read(h)))
			return 1
		}
	}
	l.SetField(l.NewTypeMetatable(typeTCP), "__index", l.SetFuncs(l.NewTable(), methods))

	changes := l.NewTypeMetatable(typeChanges)
	toString := l.NewFunction(func(l *lua.LState) int {
		c, ok := l.CheckUserData(1).Value.(*compare.Comparison)
		if !ok {
			l.ArgError(1, "changes are needed here")
		}
		return text(l, describe(c))
	})
	l.SetField(changes, "__tostring", toString)
	table := l.NewTable()
	l.SetField(table, "__tostring", toString)
	l.SetField(changes, "__index", table)

	filters := l.NewTypeMetatable(typeFilter)
	l.SetField(filters, "__index", l.SetFuncs(l.NewTable(), map[string]lua.LGFunction{
		"close": func(l *lua.LState) int {
			release, ok := l.CheckUserData(1).Value.(func() error)
			if !ok {
				l.ArgError(1, "a filter is needed here")
			}
			if err := release(); err != nil {
				l.RaiseError("%v", err)
			}
			return 0
		},
	}))
}

func text(l *lua.LState, s string) int {
	l.Push(lua.LString(s))
	return 1
}

// join puts two packets' layers together.
func (s *session) join(l *lua.LState) int {
	var all probe.Probe
	for n := 1; n <= 2; n++ {
		u, ok := l.Get(n).(*lua.LUserData)
		var p *scriptPacket
		if ok {
			p, ok = u.Value.(*scriptPacket)
		}
		if !ok || p.probe == nil {
			l.RaiseError("a %s cannot be part of a probe: join functions such as tcp{} and macros such as TCP", l.Get(n).Type())
			return 0
		}
		all = append(all, p.probe...)
	}
	l.Push(s.wrap(typePacket, &scriptPacket{probe: all}))
	return 1
}

// has reports whether a packet has a TCP option of a name of the probe language.
func (s *session) has(l *lua.LState) int {
	p, name := s.packet(), compare.Field(fmt.Sprintf("%s%s", compare.OptionPrefix, l.CheckString(2)))
	value, _ := compare.Of(p).Value(name)
	l.Push(lua.LBool(value.Present))
	return 1
}
