package transport

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
	"github.com/detour-collective/dcol/internal/kernel/bpf/option"
	"github.com/detour-collective/dcol/internal/ratelimit"
	"github.com/detour-collective/dcol/internal/tcpopt"
	"github.com/detour-collective/dcol/internal/units"
)

// exchange is the exchange of TCP options with other hosts, and its log.
type exchange struct {
	settings config.Options
	kernel   *option.Exchange
	log      *slog.Logger
	done     chan struct{} // closed when no report comes any more

	mu     sync.Mutex
	recent []api.OptionReport // the oldest first
	counts map[api.OptionCount]uint64
	limits *ratelimit.Limits
}

const (
	// recentMax bounds the reports that are kept.
	recentMax = 1000
	// A burst of logBurst reports is logged, and then one every logInterval. All are counted.
	logBurst    = 20
	logInterval = time.Second
)

// WantsOptions reports whether anything is asked or granted.
func WantsOptions(o config.Options) bool {
	return len(asks(o.Ask)) > 0 || len(accepts(o.Accept)) > 0
}

// asks returns the requests to peers.
func asks(a config.AskOptions) (list []tcpopt.Request) {
	add := func(o tcpopt.Option, value uint32) {
		if value != 0 {
			list = append(list, tcpopt.Request{Option: o, Value: value})
		}
	}
	add(tcpopt.UserTimeout, tcpopt.UserTimeoutSeconds(tcpopt.UserTimeoutField(a.UserTimeout.Std())))
	number, _ := tcpopt.CongestionNumber(a.Congestion)
	add(tcpopt.Congestion, uint32(number))
	add(tcpopt.InitialWindow, uint32(a.InitialWindow))
	if a.AckDelay > 0 {
		fraction := math.Round(float64(a.AckDelay) * tcpopt.FractionUnit / 100)
		add(tcpopt.DelayedACK, tcpopt.Strategy{Fraction: uint8(fraction), Segments: uint8(a.AckSegments)}.Value())
	}
	if a.Rate.On {
		add(tcpopt.Rate, tcpopt.RateValue(a.Rate.Rate))
	}
	return list
}

// accepts returns the options that are granted.
func accepts(a config.AcceptOptions) (list []tcpopt.Option) {
	add := func(o tcpopt.Option, yes bool) {
		if yes {
			list = append(list, o)
		}
	}
	add(tcpopt.UserTimeout, a.UserTimeoutMax > 0)
	add(tcpopt.Congestion, len(a.Congestion) > 0)
	add(tcpopt.InitialWindow, a.InitialWindow > 0)
	add(tcpopt.DelayedACK, a.AckDelay)
	add(tcpopt.Rate, a.RateMin.On)
	return list
}

// openExchange attaches the program. Congestion controls that the kernel does not have are left out, and
// named in problems.
func openExchange(o config.Options, subflowsAreOthers bool, register func(string) (string, error), log *slog.Logger) (x *exchange, problems []string, err error) {
	x = &exchange{
		settings: o, log: log, done: make(chan struct{}), counts: make(map[api.OptionCount]uint64), limits: ratelimit.New(logBurst, logInterval),
	}
	names, usable := make(map[string]string), []string(nil)
	for _, use := range o.Accept.Congestion {
		name, err := register(use)
		if err == nil {
			err = cc.Available(name)
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s is granted to no peer ([options.accept] congestion): %v", use, err))
			continue
		}
		names[use], usable = name, append(usable, use)
	}
	x.kernel, err = option.Open(option.Config{
		Ask: asks(o.Ask), Accept: accepts(o.Accept), CongestionNames: names, Peers: o.Networks, Trusted: o.Accept.Trusted,
		SubflowsAreOthers: subflowsAreOthers,
		Bounds: tcpopt.Bounds{
			UserTimeoutMin: o.Accept.UserTimeoutMin.Std(), UserTimeoutMax: o.Accept.UserTimeoutMax.Std(),
			Congestions: usable, WindowMax: uint32(o.Accept.InitialWindow), RateMin: tcpopt.RateValue(o.Accept.RateMin.Rate),
		},
	})
	if err != nil {
		return nil, problems, err
	}
	go x.read()
	return x, problems, nil
}

// read notes the reports until the program is detached.
func (x *exchange) read() {
	defer close(x.done)
	for {
		r, err := x.kernel.Read()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			x.log.Warn("requests by TCP options are no longer shown, because their reports cannot be read", "err", err)
			return
		}
		x.note(r, time.Now())
	}
}

// note counts and keeps a report, and logs it if there are not too many.
func (x *exchange) note(r option.Report, now time.Time) {
	out := api.OptionReport{
		At: now, Local: r.Local, Remote: r.Remote, Option: r.Request.Option.String(), Asked: valueText(r.Request),
		Verdict: r.Verdict.String(), Why: r.Verdict.Explain(),
	}
	if r.Verdict == tcpopt.Granted || r.Verdict == tcpopt.Capped {
		out.Granted = grantedText(r)
	}
	if r.Err != nil {
		out.Why += ": " + r.Err.Error()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.counts[api.OptionCount{Option: out.Option, Verdict: out.Verdict}]++
	if len(x.recent) == recentMax {
		x.recent = slices.Delete(x.recent, 0, recentMax/10)
	}
	x.recent = append(x.recent, out)
	if x.limits.Take("", now) == 0 {
		x.log.Info("TCP option", "option", out.Option, "local", out.Local, "remote", out.Remote, "asked", out.Asked,
			"verdict", out.Verdict, "granted", out.Granted, "why", out.Why)
	}
}

// valueText returns a request's value for people.
func valueText(r tcpopt.Request) string {
	switch r.Option {
	case tcpopt.UserTimeout:
		return (time.Duration(r.Value) * time.Second).String()
	case tcpopt.Congestion:
		if name, ok := tcpopt.Congestions[uint16(r.Value)]; ok {
			return name
		}
		return fmt.Sprintf("number %d", r.Value)
	case tcpopt.InitialWindow:
		return fmt.Sprintf("%d segments", r.Value)
	case tcpopt.Rate:
		return units.FormatRate(float64(r.Value) * tcpopt.RateUnit)
	case tcpopt.DelayedACK:
		s := tcpopt.StrategyOf(r.Value)
		return fmt.Sprintf("%d%% of the round trip, %d segments", (int(s.Fraction)*100+tcpopt.FractionUnit/2)/tcpopt.FractionUnit, s.Segments)
	}
	return fmt.Sprint(r.Value)
}

// grantedText returns the value that was granted, in words.
func grantedText(r option.Report) string {
	if r.Request.Option == tcpopt.DelayedACK {
		return (time.Duration(r.Granted) * time.Microsecond).String() + " at most, 2 segments"
	}
	return valueText(tcpopt.Request{Option: r.Request.Option, Value: r.Granted})
}

// status describes the exchange.
func (x *exchange) status() (*api.Options, error) {
	calls, err := x.kernel.Calls()
	if err != nil {
		return nil, err
	}
	rests, internet, err := x.kernel.Rests()
	if err != nil {
		return nil, err
	}
	out := &api.Options{
		Networks: []string{}, Known: describeOptions(x.settings), Counts: []api.OptionCount{}, Calls: calls,
		Unannounced: []api.Unannounced{}, UnannouncedInternet: internet,
	}
	for _, r := range rests {
		out.Unannounced = append(out.Unannounced, api.Unannounced{Network: r.Network, Until: r.Until})
	}
	for _, n := range x.settings.Networks {
		out.Networks = append(out.Networks, n.String())
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	out.Recent = append([]api.OptionReport{}, x.recent...)
	for c, n := range x.counts {
		c.Count = n
		out.Counts = append(out.Counts, c)
	}
	slices.SortFunc(out.Counts, api.CompareOptionCounts)
	return out, nil
}

// describeOptions lists all options, with what this host asks and grants.
func describeOptions(o config.Options) (list []api.Option) {
	for _, known := range tcpopt.Options {
		out := api.Option{Name: known.String()}
		for _, r := range asks(o.Ask) {
			if r.Option == known {
				out.Asks = valueText(r)
			}
		}
		if slices.Contains(accepts(o.Accept), known) {
			out.Grants = grants(o.Accept, known)
		}
		list = append(list, out)
	}
	return list
}

func grants(a config.AcceptOptions, o tcpopt.Option) string {
	switch o {
	case tcpopt.UserTimeout:
		return fmt.Sprintf("from %v to %v", a.UserTimeoutMin, a.UserTimeoutMax)
	case tcpopt.Congestion:
		return fmt.Sprint(a.Congestion)
	case tcpopt.InitialWindow:
		return fmt.Sprintf("up to %d segments to %v", a.InitialWindow, a.Trusted)
	case tcpopt.Rate:
		return fmt.Sprintf("from %v up", a.RateMin)
	}
	return "any"
}

// GrantedRates has the rates that peers were granted by options, for sending.Open; nil: none are.
func (t *Transport) GrantedRates() *ebpf.Map {
	if t.options == nil {
		return nil
	}
	return t.options.kernel.GrantedRates()
}

// Close ends the exchange.
func (x *exchange) Close() error {
	err := x.kernel.Close()
	<-x.done
	return err
}
