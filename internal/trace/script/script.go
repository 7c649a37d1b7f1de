// Package script runs the scripts of tracebox (thesis, 3.3 and 3.5), in Lua. A script builds probes with the
// functions of trace/probe, traces with them, and may act as the client of a connection. It has no access to files
// or programs, and its time and memory are bounded.
package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"time"

	lua "github.com/yuin/gopher-lua"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/printable"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
	"github.com/detour-collective/dcol/internal/trace/probe"
)

// Host gives a script access to the network, within limits.
type Host struct {
	Net                 trace.Network
	Source, Destination netip.Addr
	Name                string // of the destination, as the user wrote it
	Random              *rand.Rand
	// Hold holds back the kernel's resets of a connection, until release is called.
	Hold    func(source, destination uint16) (release func() error, err error)
	MaxHops int
	Out     io.Writer // of print
}

// Limits of a script.
type Limits struct {
	Time   time.Duration // 0: 5 minutes
	Memory uint64        // bytes that it may add to the heap; 0: 256 MiB
}

// Errors of scripts that exceed a limit.
var (
	ErrTime   = errors.New("the script takes too long")
	ErrMemory = errors.New("the script uses too much memory")
)

// Run runs a script. name is for error messages.
func Run(ctx context.Context, name, code string, h *Host, limits Limits) error {
	const defaultTime, defaultMemory = 5 * time.Minute, 256 << 20
	if limits.Time == 0 {
		limits.Time = defaultTime
	}
	if limits.Memory == 0 {
		limits.Memory = defaultMemory
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(limits.Time, func() { cancel(fmt.Errorf("%w: more than %v", ErrTime, limits.Time)) })
	defer timer.Stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watchMemory(ctx, limits.Memory, cancel)
	}()
	defer func() {
		cancel(nil)
		<-ended
	}()

	const stack, registry = 200, 1 << 16
	l := lua.NewState(lua.Options{CallStackSize: stack, RegistryMaxSize: registry, SkipOpenLibs: true})
	l.SetContext(ctx)
	s := &session{host: h, ctx: ctx, cancel: cancel, lua: l}
	result := make(chan error, 1)
	go func() {
		defer l.Close()
		defer s.release()
		s.open()
		f, err := s.load(name, code)
		if err == nil {
			l.Push(f)
			err = l.PCall(0, lua.MultRet, nil)
		}
		result <- err
	}()
	err := wait(ctx, result)
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s: %w", name, cause)
	}
	if err != nil {
		return errors.New(printableLines(err.Error()))
	}
	return nil
}

// wait waits for a script to end. The interpreter notices the end of ctx between two instructions. One instruction
// may take very long, such as a search for a bad pattern; then the script is left behind.
func wait(ctx context.Context, result <-chan error) error {
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	const grace = 2 * time.Second
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-result:
		return err
	case <-timer.C:
		return context.Cause(ctx)
	}
}

// printableLines makes each line of a text safe for a terminal.
func printableLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	for i := range lines {
		lines[i] = printable.Text(lines[i])
	}
	return strings.Join(lines, "\n")
}

// watchMemory ends a script when the heap has grown too much.
func watchMemory(ctx context.Context, most uint64, cancel context.CancelCauseFunc) {
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	start := now.HeapAlloc
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if runtime.ReadMemStats(&now); now.HeapAlloc > start+most {
				cancel(fmt.Errorf("%w: more than %d MiB", ErrMemory, most>>20))
				return
			}
		}
	}
}

// session is a running script.
type session struct {
	host   *Host
	ctx    context.Context
	cancel context.CancelCauseFunc
	lua    *lua.LState
	holds  []func() error
}

func (s *session) release() {
	for _, release := range s.holds {
		_ = release()
	}
}

// Names of metatables.
const (
	typePacket  = "packet"
	typeTCP     = "tcp header"
	typeChanges = "changes"
	typeFilter  = "filter"
)

// open defines the names that scripts can use: parts of Lua's library, the functions and macros of probes, tracebox and
// filter.
func (s *session) open() {
	l := s.lua
	for _, lib := range []struct {
		name string
		open lua.LGFunction
	}{{lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}, {lua.StringLibName, lua.OpenString}, {lua.MathLibName, lua.OpenMath}} {
		l.Push(l.NewFunction(lib.open))
		l.Push(lua.LString(lib.name))
		l.Call(1, 0)
	}
	for _, name := range []string{"dofile", "loadfile", "load", "loadstring", "require", "module", "collectgarbage", "newproxy"} {
		l.SetGlobal(name, lua.LNil)
	}
	s.bound()
	l.SetGlobal("print", l.NewFunction(s.print))
	s.types()
	for _, name := range probe.Functions() {
		l.SetGlobal(name, l.NewFunction(func(*lua.LState) int { return s.call(name) }))
	}
	for _, name := range probe.Macros() {
		layers, err := probe.Macro(name)
		if err != nil {
			continue // a test makes every macro
		}
		l.SetGlobal(name, s.wrap(typePacket, &scriptPacket{probe: layers}))
	}
	l.SetGlobal("tracebox", l.NewFunction(s.trace))
	l.SetGlobal("filter", l.NewFunction(s.filter))
	l.SetGlobal("destination", lua.LString(s.host.Destination.String()))
	l.SetGlobal("name", lua.LString(s.host.Name))
}

// scriptPacket is a probe, a packet that was made of one, or one that has arrived.
type scriptPacket struct {
	probe probe.Probe
	built *probe.Built
}

func (s *session) wrap(kind string, v any) *lua.LUserData {
	u := s.lua.NewUserData()
	u.Value = v
	s.lua.SetMetatable(u, s.lua.GetTypeMetatable(kind))
	return u
}

// packet returns the packet that is the first argument. It is made at the first use, and stays the same.
func (s *session) packet() *packet.Packet {
	u := s.lua.CheckUserData(1)
	p, ok := u.Value.(*scriptPacket)
	if !ok {
		s.lua.ArgError(1, "a packet, such as IP / TCP, is needed here")
		return nil
	}
	return s.build(p).Packet
}

func (s *session) build(p *scriptPacket) probe.Built {
	if p.built == nil {
		built, err := p.probe.Build(probe.Env{Source: s.host.Source, Destination: s.host.Destination, Random: s.host.Random})
		if err != nil {
			s.lua.RaiseError("%v", err)
		}
		if built.Packet.Dst() != s.host.Destination {
			s.lua.RaiseError("the packet goes to %v: a script may only trace its destination, %v", built.Packet.Dst(), s.host.Destination)
		}
		p.built = &built
	}
	return *p.built
}

// call is a function of the probe language.
func (s *session) call(name string) int {
	args := probe.Args{Named: map[string]any{}}
	for i := 1; i <= s.lua.GetTop(); i++ {
		switch v := s.lua.Get(i).(type) {
		case *lua.LTable:
			v.ForEach(func(k, v lua.LValue) {
				if key, ok := k.(lua.LString); ok {
					args.Named[string(key)] = s.argument(v)
				} else {
					args.List = append(args.List, s.argument(v))
				}
			})
		default:
			args.List = append(args.List, s.argument(v))
		}
	}
	layers, err := probe.Call(name, args)
	if err != nil {
		s.lua.RaiseError("%v", err)
	}
	s.lua.Push(s.wrap(typePacket, &scriptPacket{probe: layers}))
	return 1
}

func (s *session) argument(v lua.LValue) any {
	switch v := v.(type) {
	case lua.LNumber:
		return int64(v)
	case lua.LString:
		return string(v)
	}
	s.lua.RaiseError("an argument must be a number or a string, not a %s", v.Type())
	return nil
}

func (s *session) print(l *lua.LState) int {
	var parts []string
	for i := 1; i <= l.GetTop(); i++ {
		parts = append(parts, printableLines(l.ToStringMeta(l.Get(i)).String()))
	}
	if _, err := fmt.Fprintln(s.host.Out, strings.Join(parts, "\t")); err != nil {
		l.RaiseError("%v", err)
	}
	return 0
}

// filter holds back the kernel's resets of a packet's connection. It returns an object with close.
func (s *session) filter(l *lua.LState) int {
	p := s.packet()
	if p.TCP == nil {
		l.ArgError(1, "a TCP packet is needed here: only TCP has resets")
	}
	release, err := s.host.Hold(p.TCP.SrcPort, p.TCP.DstPort)
	if err != nil {
		l.RaiseError("%v", err)
	}
	s.holds = append(s.holds, release)
	l.Push(s.wrap(typeFilter, release))
	return 1
}

// trace sends a packet to each hop, and returns the destination's answer. The callback of its options is called for
// each quote: its distance, the router, the packet, the ICMP error, and the changes, nil if there are none.
func (s *session) trace(l *lua.LState) int {
	p := s.packet()
	options := trace.Options{MaxHops: s.host.MaxHops, Keep: true, FixedID: l.CheckUserData(1).Value.(*scriptPacket).built.FixedID}
	var failed error
	if callback := s.callback(); callback != nil {
		options.OnQuote = func(distance int, sent, reply *packet.Packet, q trace.Quote) bool {
			changes := lua.LNil
			if len(q.Changes) > 0 {
				changes = s.wrap(typeChanges, q.Comparison)
			}
			err := l.CallByParam(lua.P{Fn: callback, NRet: 1, Protect: true}, lua.LNumber(distance), lua.LString(q.From.String()),
				s.wrap(typePacket, arrived(sent)), s.wrap(typePacket, arrived(reply)), changes)
			if err != nil {
				failed = err
				return true
			}
			stop := l.Get(-1)
			l.Pop(1)
			return stop != lua.LNil && stop != lua.LFalse
		}
	}
	path, err := trace.Run(s.ctx, s.host.Net, p, options)
	if err = errors.Join(failed, err); err != nil {
		l.RaiseError("%v", err)
	}
	if path.Answer == nil {
		l.Push(lua.LNil)
	} else {
		l.Push(s.wrap(typePacket, arrived(path.Answer.Packet)))
	}
	return 1
}

func arrived(p *packet.Packet) *scriptPacket { return &scriptPacket{built: &probe.Built{Packet: p}} }

// callback returns the function that tracebox's second argument names, or is.
func (s *session) callback() *lua.LFunction {
	options, ok := s.lua.Get(2).(*lua.LTable)
	if !ok {
		return nil
	}
	v := options.RawGetString("callback")
	if name, isName := v.(lua.LString); isName {
		v = s.lua.GetGlobal(string(name))
	}
	switch v := v.(type) {
	case *lua.LFunction:
		return v
	case *lua.LNilType:
		return nil
	}
	s.lua.RaiseError("the callback must be a function, or the name of one")
	return nil
}

// describe writes changes as the thesis does.
func describe(c *compare.Comparison) string { return compare.Thesis(c.Changes) }
