package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/trace/compare"
	"github.com/detour-collective/dcol/internal/trace/present"
	"github.com/detour-collective/dcol/lab/middlebox"
	"github.com/detour-collective/dcol/lab/testbed"
)

// traceRouters is the number of routers in the matrix. A router behind each place of a box shows the box's effect.
const traceRouters = 9

// tracePath is a client and a server with routers between them.
type tracePath struct {
	*testbed.Network
	dcol string
}

// openTracePath builds a path. The delay is that of each link, each way.
func openTracePath(ctx context.Context, o Options, routers int, delay time.Duration) (*tracePath, error) {
	spec := testbed.Spec{Backend: testbed.BackendEmulator, Hosts: []testbed.HostSpec{{Name: "client"}}}
	shape := testbed.LinkParams{Delay: delay}
	before := "client"
	for i := 1; i <= routers; i++ {
		name := routerName(i)
		spec.Hosts = append(spec.Hosts, testbed.HostSpec{Name: name, Forward: true, Quotes: middlebox.QuoteAll})
		spec.Links = append(spec.Links, testbed.LinkSpec{Name: fmt.Sprintf("l%d", i), A: before, B: name, AtoB: shape, BtoA: shape})
		before = name
	}
	spec.Hosts = append(spec.Hosts, testbed.HostSpec{Name: serverHost})
	spec.Links = append(spec.Links, testbed.LinkSpec{Name: "last", A: before, B: serverHost, AtoB: shape, BtoA: shape})
	n, err := testbed.Build(ctx, spec, o.Log)
	if err != nil {
		return nil, err
	}
	return &tracePath{n, o.Programs.DCol}, nil
}

func routerName(i int) string { return fmt.Sprintf("r%d", i) }

// trace runs dcol trace on the client.
func (p *tracePath) trace(ctx context.Context, args ...string) (t present.Trace, err error) {
	cmd := p.Host("client").Command(ctx, p.dcol, slices.Concat([]string{"trace", "--json"}, args, []string{serverHost})...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &t)
	}
	if err != nil {
		return t, fmt.Errorf("dcol trace %v: %w: %s", args, err, errs.String())
	}
	return t, nil
}

// traceBoxes lists the boxes of the matrix, with the field and the probe that find each, and the quotes that show it.
var traceBoxes = []struct {
	kind  middlebox.Kind
	field compare.Field
	shown shown
	probe string // "": the default
}{
	{middlebox.PadMPTCP, compare.Capable, byWhole, ""},
	{middlebox.RemoveMPTCP, compare.Capable, byLength, ""},
	{middlebox.RemoveUnknown, compare.Capable, byWhole, ""},
	{middlebox.RemoveScale, compare.WindowScale, byWhole, ""},
	{middlebox.RemoveTimestamps, compare.Timestamps, byWhole, ""},
	{middlebox.ClampMSS, compare.MSS, byWhole, ""},
	{middlebox.AddMSS, compare.MSS, byLength, "IP / TCP / SACKP"},
	{middlebox.RandomiseSeq, compare.Seq, byAll, ""},
	{middlebox.ClearECN, compare.ECN, byAll, "ip{ecn=2} / TCP"},
	{middlebox.NATOpaque, compare.TCPSource, byAll, ""},
}

// shown classifies a change by the quotes that show it.
type shown int

const (
	byWhole  shown = iota // quotes of whole packets
	byLength              // quotes of whole packets; the length, which all quotes have, locates it
	byAll
)

// traceFull lists the measured choices of routers that quote whole packets, by number. The other routers quote 8 bytes.
var traceFull = [][]int{nil, {5}, {2, 5, 7}, {1, 2, 3, 4, 5, 6, 7, 8, 9}}

// expected is the smallest interval that the quotes allow, as text; "" if none shows the change.
func expected(field compare.Field, s shown, at int, full []int) string {
	after, by := 0, 0
	for d := 1; d <= traceRouters; d++ {
		if s == byWhole && !slices.Contains(full, d) {
			continue
		}
		if d <= at {
			after = d
		} else if by == 0 {
			by = d
		}
	}
	if by == 0 {
		return ""
	}
	if confirmed := len(full) > 0 && full[len(full)-1] > at; s == byLength && !confirmed {
		field = compare.Length
	}
	return fmt.Sprintf("%s (%d,%d]", field, after, by)
}

func traceFindings(t present.Trace) string {
	var all []string
	for _, f := range t.Findings {
		all = append(all, fmt.Sprintf("%s (%d,%d]", f.Field, f.After, f.By))
	}
	return strings.Join(all, ", ")
}

// traces measures dcol trace: the matrix of boxes, places and quotes, false findings, the time, and other programs.
func traces(ctx context.Context, o Options) (found []Measurement, err error) {
	p, err := openTracePath(ctx, o, traceRouters, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	right, wrong, cases, err := p.matrix(ctx, o)
	if err != nil {
		return nil, err
	}
	m := once("trace: boxes found in the smallest interval that quotes allow, and nothing else", "of all", float64(right)/float64(cases)).
		target("1", right == cases)
	m.Repetitions, m.Note = cases, strings.Join(wrong, "; ")
	found = append(found, m)
	falsely, runs, err := p.falseFindings(ctx, o)
	if err != nil {
		return found, err
	}
	m = once("trace: false findings", "traces", float64(falsely)).target("0", falsely == 0)
	m.Repetitions = runs
	found = append(found, m)
	others, err := p.others(ctx)
	if err != nil {
		return found, err
	}
	found = append(found, others...)
	timed, err := traceTime(ctx, o)
	if found = append(found, timed...); err != nil {
		return found, err
	}
	memory, err := traceMemory(ctx, o)
	if found = append(found, memory...); err != nil {
		return found, err
	}
	sack, err := damagedSACK(ctx, o)
	return append(found, sack...), err
}

// matrix traces each box at eight places, with each choice of quotes.
func (p *tracePath) matrix(ctx context.Context, o Options) (right int, wrong []string, cases int, err error) {
	for _, full := range traceFull {
		for i := 1; i <= traceRouters; i++ {
			if err := p.SetStation(routerName(i), "", quotesOf(i, full), ""); err != nil {
				return right, wrong, cases, err
			}
		}
		for _, box := range traceBoxes {
			for at := 1; at < traceRouters; at++ {
				if err := p.SetStation(routerName(at), testbed.Middlebox(box.kind), quotesOf(at, full), ""); err != nil {
					return right, wrong, cases, err
				}
				var args []string
				if box.probe != "" {
					args = []string{"-p", box.probe}
				}
				t, err := p.trace(ctx, args...)
				if err != nil {
					return right, wrong, cases, err
				}
				cases++
				if want, got := expected(box.field, box.shown, at, full), traceFindings(t); got == want {
					right++
				} else {
					wrong = append(wrong, fmt.Sprintf("%s at %d, full quotes %v: %q, not %q", box.kind, at, full, got, want))
				}
				if err := p.SetStation(routerName(at), "", quotesOf(at, full), ""); err != nil {
					return right, wrong, cases, err
				}
			}
			fmt.Fprintf(o.Stderr, "trace: %s, %d full quotes: %d of %d\n", box.kind, len(full), right, cases)
		}
	}
	return right, wrong, cases, nil
}

func quotesOf(router int, full []int) middlebox.Quotes {
	if slices.Contains(full, router) {
		return middlebox.QuoteAll
	}
	return middlebox.Quote8
}

// falseFindings traces the path without boxes, with all kinds of routers, and counts traces that find something.
func (p *tracePath) falseFindings(ctx context.Context, o Options) (falsely, runs int, err error) {
	runs = o.Repetitions
	if runs == 0 {
		runs = 1000
	}
	random := rand.New(rand.NewPCG(1, 1))
	quotes := append(middlebox.AllQuotes(), middlebox.QuoteAll)
	for run := range runs {
		if run%10 == 0 {
			for i := 1; i <= traceRouters; i++ {
				icmp := middlebox.ICMPAlways
				if random.IntN(8) == 0 {
					icmp = middlebox.ICMPOther
				}
				if err := p.SetStation(routerName(i), "", quotes[random.IntN(len(quotes))], icmp); err != nil {
					return falsely, run, err
				}
			}
		}
		args := []string{"-4"}
		if run%2 == 1 {
			args = []string{"-6"}
		}
		t, err := p.trace(ctx, args...)
		if err != nil {
			return falsely, run, err
		}
		if len(t.Findings) > 0 {
			falsely++
			fmt.Fprintf(o.Stderr, "trace: false finding: %s\n", traceFindings(t))
		}
	}
	return falsely, runs, nil
}

// traceOthers lists programs for the same purpose, which may not be installed. Each has the words with which it would show
// that MPTCP's option is gone.
var traceOthers = []struct {
	name string
	args []string
	says string
}{
	{"mtr", []string{"-n", "-r", "-c", "1", "--tcp", "-P", "80", serverHost}, "MP_CAPABLE"},
	{"traceroute", []string{"--mtu", "-n", serverHost}, "MP_CAPABLE"},
	{"scamper", []string{"-n", "127.0.0.1", "-I", "tbit -t null -u http://" + serverHost + "/ ADDRESS"}, "MP_CAPABLE"},
}

// others runs other programs on a path on which MPTCP's option is removed, and reports whether they find that.
func (p *tracePath) others(ctx context.Context) (found []Measurement, err error) {
	if err := p.SetStation(routerName(4), testbed.Middlebox(middlebox.PadMPTCP), middlebox.QuoteAll, ""); err != nil {
		return nil, err
	}
	start := time.Now()
	t, err := p.trace(ctx)
	if err != nil {
		return nil, err
	}
	own := time.Since(start).Seconds()
	m := once("trace: whole command on nine routers", "s", own)
	m.Note = "finds " + traceFindings(t)
	found = append(found, m)
	for _, other := range traceOthers {
		if _, err := exec.LookPath(other.name); err != nil {
			continue
		}
		for i := range other.args {
			other.args[i] = strings.ReplaceAll(other.args[i], "ADDRESS", p.Host(serverHost).Addr4().String())
		}
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		start := time.Now()
		out, err := p.Host("client").Command(limited, other.name, other.args...).CombinedOutput()
		took := time.Since(start).Seconds()
		cancel()
		m := once("trace: "+other.name+" on the same path", "s", took).against(own)
		switch {
		case err != nil:
			m.Note = fmt.Sprintf("failed: %v: %s", err, strings.TrimSpace(string(out)))
		case strings.Contains(string(out), other.says):
			m.Note = "finds the removal"
		default:
			m.Note = fmt.Sprintf("does not find the removal (%d lines)", strings.Count(string(out), "\n"))
		}
		found = append(found, m)
	}
	return found, nil
}

// traceTime traces twelve hops with 20 ms of round trip more at each.
func traceTime(ctx context.Context, o Options) (found []Measurement, err error) {
	const hops, runs, most = 12, 11, 1.5
	p, err := openTracePath(ctx, o, hops-1, 10*time.Millisecond)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	var seconds []float64
	for range runs {
		t, err := p.trace(ctx)
		if err != nil {
			return nil, err
		}
		if t.Distance != hops || !t.Sure {
			return nil, fmt.Errorf("a path of %d hops has %d by dcol trace", hops, t.Distance)
		}
		seconds = append(seconds, t.TookMS/1000)
	}
	m := of("trace: twelve hops of 20 ms each", "s", seconds)
	return []Measurement{m.target(fmt.Sprintf("≤ %v", most), m.Value <= most)}, nil
}
