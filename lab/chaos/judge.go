package chaos

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/chaos/twin"
)

// Verdict lists the findings of a sequence by kind, one line each.
type Verdict struct {
	Broken       []string `json:"broken"`
	WrongBytes   []string `json:"wrong_bytes"`
	Unauthorised []string `json:"unauthorised"`
	Unrecovered  []string `json:"unrecovered"`
	Grown        []string `json:"grown"`
	Died         []string `json:"died"`
	// Held lists connections that the kernel of an end hung or damaged. They are no findings.
	Held []string `json:"held_by_kernel,omitempty"`
}

// Bad reports whether there are findings.
func (v Verdict) Bad() bool {
	return len(v.Broken)+len(v.WrongBytes)+len(v.Unauthorised)+len(v.Unrecovered)+len(v.Grown)+len(v.Died) > 0
}

// all returns the findings by kind.
func (v Verdict) all() map[string][]string {
	return map[string][]string{
		"broken": v.Broken, "wrong_bytes": v.WrongBytes, "unauthorised": v.Unauthorised, "unrecovered": v.Unrecovered, "grown": v.Grown,
		"died": v.Died,
	}
}

// like reports whether two verdicts have a kind of finding in common, so that a smaller
// plan fails as the larger one did.
func (v Verdict) like(other Verdict) bool {
	theirs := other.all()
	for kind, found := range v.all() {
		if len(found) > 0 && len(theirs[kind]) > 0 {
			return true
		}
	}
	return false
}

// judge compares observations with dcol's promises.
func judge(o Observations) Verdict {
	v := Verdict{Broken: []string{}, WrongBytes: []string{}, Unauthorised: []string{}, Unrecovered: []string{}, Grown: []string{}, Died: []string{}}
	v.Died = append(v.Died, o.Died...)
	for _, p := range o.Pairs {
		p.Held = p.Held || o.halfClosedAtMove(p) || o.lostByFallback(p.MPTCP)
		v.judgePair(p)
	}
	for _, why := range slices.Sorted(maps.Keys(o.Unauthorised)) {
		v.Unauthorised = append(v.Unauthorised, fmt.Sprintf("%s (%d times)", why, o.Unauthorised[why]))
	}
	v.Unauthorised = append(v.Unauthorised, o.Excess...)
	v.Unauthorised = append(v.Unauthorised, slices.Compact(slices.Sorted(slices.Values(o.Stolen)))...)
	for _, p := range o.Lacking {
		v.Unrecovered = append(v.Unrecovered, p.describe()+o.changed())
	}
	for _, c := range o.Unconverted {
		v.Unrecovered = append(v.Unrecovered, c+" does not come through the converter, and nothing had struck yet")
	}
	for _, c := range o.HeldStill {
		v.Held = append(v.Held, c+", without the direct path")
	}
	for _, c := range o.Still {
		v.Unrecovered = append(v.Unrecovered, fmt.Sprintf("%s stood still for %v without the direct path, though it had another", c, cutLimit))
	}
	for _, host := range slices.Sorted(maps.Keys(o.After)) {
		v.judgeGrowth(host, o.Before[host], o.After[host])
	}
	v.judgeRest(o)
	return v
}

// changed names the links on which data of detours was changed. A missing path often
// leads over one of them.
func (o Observations) changed() string {
	var links []string
	for _, k := range o.Strikes {
		if (k.Fault.Kind == plan.LinkTamper || k.Fault.Kind == plan.TamperReplies) && k.Counts && !slices.Contains(links, k.Hit) {
			links = append(links, k.Hit)
		}
	}
	if len(links) == 0 {
		return ""
	}
	return fmt.Sprintf("; data was changed on %v", links)
}

func (p Paths) describe() string {
	s := fmt.Sprintf("the connection from %v had %d paths %v", p.Local, len(p.Ways), p.Ways)
	if len(p.Dead) > 0 {
		s += fmt.Sprintf(", of which %v drops TCP and was not left,", p.Dead)
	}
	if p.Fallback {
		s += ", as it was plain TCP without a reason,"
	}
	return s + fmt.Sprintf(" %v after the last fault", recoverLimit)
}

// judgePair requires that a connection survived what its twin survived.
func (v *Verdict) judgePair(p PairRecord) {
	var wrong *twin.WrongBytesError
	switch {
	case errors.As(p.MPTCP.Err, &wrong) && p.Held:
		v.Held = append(v.Held, fmt.Sprintf("%s: %v", describe(p.MPTCP), wrong))
	case errors.As(p.MPTCP.Err, &wrong):
		v.WrongBytes = append(v.WrongBytes, fmt.Sprintf("%s: %v", describe(p.MPTCP), wrong))
	case !p.MPTCP.Whole && kept(p) && p.Held:
		v.Held = append(v.Held, describe(p.MPTCP))
	case !p.MPTCP.Whole && kept(p):
		v.Broken = append(v.Broken, fmt.Sprintf("%s: %v", describe(p.MPTCP), p.MPTCP.Err))
	}
}

// halfClosedAtMove reports whether a connection had closed its direction when the client's address changed or its NAT
// lost its state, and its twin had ended by then. On a busy machine the change lasts a moment, until Strike.Done. Linux
// opens no subflows for such a connection (ENOTCONN), so nobody can give it a path from the new address. After a NAT's
// restart, the server's packets cannot get in, as with plain TCP, and the client has nothing to send.
func (o Observations) halfClosedAtMove(p PairRecord) bool {
	life := time.Duration(p.MPTCP.Stream.Life)
	return life > 0 && slices.ContainsFunc(o.Strikes, func(k Strike) bool {
		return (k.Fault.Kind == plan.Renumber || k.Fault.Kind == plan.RestartNAT) &&
			p.MPTCP.Began.Add(life).Before(k.Done) && p.Plain.Whole &&
			p.Plain.Ended.Before(k.Done) && p.MPTCP.Ended.After(k.Began)
	})
}

// lostByFallback reports whether a connection lost data because it became plain TCP. For such connections the kernel drops
// segments that begin with old bytes (mptcp.LosesOverlaps). It also loses some of what the program wrote before, if the
// program has closed its direction. Both are described in docs/kernel-behaviour.md. Only the kernel ends such a connection
// early without an error; a relay might, too.
func (o Observations) lostByFallback(r twin.Record) bool {
	var wrong *twin.WrongBytesError
	switch {
	case !r.Fallback || r.Stream.Converted:
		return false
	case errors.Is(r.Err, twin.ErrTruncated):
		return true
	}
	return o.LosesOverlaps && (errors.As(r.Err, &wrong) || errors.Is(r.Err, twin.ErrAborted))
}

// kept reports whether the twin survived: to its end, or until long after the connection
// had broken.
func kept(p PairRecord) bool {
	return p.Plain.Whole || p.Plain.Ended.Sub(p.MPTCP.Ended) >= lived && p.MPTCP.Ended.Before(p.Plain.Ended) && !errors.Is(p.Plain.Err, twin.ErrAborted)
}

// lived is the time that a twin must live longer than a broken connection. Otherwise the
// path may have broken both.
const lived = 10 * time.Second

func describe(r twin.Record) string {
	return fmt.Sprintf("%s on port %d from %v, after %v and %d bytes", r.Stream.Kind, r.Stream.Port, r.Local, r.Ended.Sub(r.Began).Round(10*time.Millisecond), r.Received)
}

// Allowed growth from before the faults to after them, because connections, mappings and
// their memory come and go.
const (
	moreMemory      = 48 << 10 // KiB, and half as much again
	moreDescriptors = 24
	moreThreads     = 16
	moreBPF         = 4
	moreRules       = 120
	moreRouting     = 4
	// A member may have eight tunnels, each with a route for both families.
	moreRoutes = 24
)

// Allowed growth from before all traffic to after it.
const (
	// Entries of BPF maps are the fast path's, two for each connection for as long as
	// conntrack has it, and keys of members that have a session, also of one who attacks.
	moreEntries = 8
	// A connection whose end was lost in a fault stays tracked. Each stream has a connection, a twin and detours, and begins
	// anew when the client's address changes. What other states track ends by itself.
	moreTracked   = 3 // for each beginning of each stream
	fewestStreams = 4 // streams that every world has
	// A world has four converted streams, whose connections begin anew after a fault.
	moreRelayed = 12
)

// judgeRest requires that nothing is left of connections that have ended.
func (v *Verdict) judgeRest(o Observations) {
	for _, host := range slices.Sorted(maps.Keys(o.IdleAgain)) {
		idle, again := o.Idle[host], o.IdleAgain[host]
		for what, n := range map[string][3]int{
			"entries of BPF maps": {idle.MapEntries, again.MapEntries, moreEntries + 2*again.Conntrack},
			"tracked connections": {idle.Tracked, again.Tracked, moreTracked * o.beginnings() * max(o.Streams, fewestStreams)},
			"relayed connections": {idle.Relayed, again.Relayed, o.mayRemain()},
		} {
			if n[1] > n[0]+n[2] {
				v.Grown = append(v.Grown, fmt.Sprintf("%s, when all connections had ended: %s from %d to %d", host, what, n[0], n[1]))
			}
		}
	}
}

// beginnings returns how often each stream may have begun, at least two: a fault may have ended it once, too.
func (o Observations) beginnings() int {
	n := 1
	for _, k := range o.Strikes {
		if k.Fault.Kind == plan.Renumber {
			n++
		}
	}
	return max(n, 2)
}

// mayRemain returns how many connections relays may still have when all programs' have ended: direct ones from an address
// that the client no longer has, or that its NAT has forgotten. As any such TCP connection, they end when nobody has
// acknowledged their end for some minutes.
func (o Observations) mayRemain() int {
	if slices.ContainsFunc(o.Strikes, func(k Strike) bool { return k.Fault.Kind == plan.Renumber || k.Fault.Kind == plan.RestartNAT }) {
		return moreRelayed
	}
	return 0
}

func (v *Verdict) judgeGrowth(host string, before, after Holdings) {
	check := func(what string, before, after, more int) {
		if after > before+more {
			v.Grown = append(v.Grown, fmt.Sprintf("%s: %s from %d to %d", host, what, before, after))
		}
	}
	check("KiB of memory", before.Memory, after.Memory, before.Memory/2+moreMemory)
	check("descriptors", before.Descriptors, after.Descriptors, moreDescriptors)
	check("threads", before.Threads, after.Threads, moreThreads)
	check("BPF objects", before.BPF, after.BPF, moreBPF)
	check("rules and elements", before.Rules, after.Rules, moreRules)
	check("routing rules", before.RoutingRule, after.RoutingRule, moreRouting)
	check("routes", before.Routes, after.Routes, moreRoutes)
	check("interfaces", before.Interfaces, after.Interfaces, 0)
	check("addresses", before.Addresses, after.Addresses, 2)
	check("namespaces", before.Namespaces, after.Namespaces, 0)
}

// tooFast returns a description if more connections left in some time than all members
// together may open, or "". syns are in order.
func tooFast(syns []time.Time) string {
	for from := range syns {
		for to := from + scanBurst; to < len(syns); to++ {
			span := syns[to].Sub(syns[from])
			if n := to - from; float64(n) > scanBurst+scanConnections*span.Seconds() {
				return fmt.Sprintf("let %d connections out in %v", n, span.Round(time.Millisecond))
			}
		}
	}
	return ""
}
