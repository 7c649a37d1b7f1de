package battery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
	"github.com/detour-collective/dcol/lab/crew"
)

// attempt is one run of a test's case by an implementation.
type attempt struct {
	*bed
	variant variant
	lengths lengths
	// congestions are the kernel's names of congestion controls that the battery has registered.
	congestions map[string]string
	// links are read at the end of the measured time.
	measured func()
}

// listening runs a measurement with the server's listener.
func (a *attempt) listening(ctx context.Context, do func(net.Listener) error) error {
	l, err := a.listen(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	return do(l)
}

// kernelName returns the kernel's name of a congestion control: one of the coupled, or one that it has.
func kernelName(coupled map[string]string, name string) (string, error) {
	if slices.Contains(cc.Algorithms, cc.Algorithm(name)) {
		return coupled[name], nil
	}
	available, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		return "", err
	}
	if name != "" && !slices.Contains(strings.Fields(string(available)), name) {
		return "", fmt.Errorf("neither this kernel nor dcol has the congestion control %q", name)
	}
	return name, nil
}

// choose prepares for connections with a congestion control, and returns the kernel's name of it.
func (a *attempt) choose(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	// The lab locks its default on the routes where the machine lets no program choose. Reno is always allowed.
	for _, host := range []string{clientHost, serverHost} {
		if err := a.Host(host).SetCongestionControl("reno"); err != nil {
			return "", err
		}
	}
	return kernelName(a.congestions, name)
}

// transfer sends for a while: by MPTCP over all paths, or by TCP over each, all at the same time, because their lines are
// separate.
func transfer(ctx context.Context, a *attempt) (v values, err error) {
	if err := a.tune(ctx); err != nil {
		return nil, err
	}
	if err := a.setUp(ctx, manage{}); err != nil {
		return nil, err
	}
	congestion, err := a.choose(a.variant.congestion)
	if err != nil {
		return nil, err
	}
	plans := []flowPlan{{multipath: true, from: 1, to: 1, congestion: congestion}}
	if a.impl == plainTCP {
		plans = nil
		for k := range a.shape.paths() {
			plans = append(plans, flowPlan{from: k/a.shape.m + 1, to: k%a.shape.m + 1})
		}
	}
	length := a.lengths.transfer
	// The start is left out, as long as it takes to find a path's rate.
	skip, early := length/4, a.lengths.early()
	v = values{}
	err = a.listening(ctx, func(l net.Listener) error {
		flows, err := a.observe(ctx, l, plans, length)
		if err != nil {
			return err
		}
		if a.impl == plainTCP {
			v.addPaths(flows, skip, early, length)
			return nil
		}
		return v.addMultipath(flows[0], skip, early, length)
	})
	if lines := a.sumOfLines(); lines > 0 && v["goodput"] > 0 {
		v["of_lines"] = v["goodput"] / lines
	}
	return v, err
}

// observe runs the planned flows at the same time, and returns the samples of each after a length of time.
func (a *attempt) observe(ctx context.Context, l net.Listener, plans []flowPlan, length time.Duration) (samples [][]sample, err error) {
	var flows []*flow
	defer func() { abandonAll(flows) }()
	for _, p := range plans {
		f, err := a.start(ctx, l, p)
		if err != nil {
			return nil, err
		}
		flows = append(flows, f)
	}
	if err := crew.Pause(ctx, length); err != nil {
		return nil, err
	}
	a.measured()
	for _, f := range flows {
		samples = append(samples, f.seen())
	}
	return samples, nil
}

// addPaths adds what TCP carried over each path from skip to length, and the round trips of the best before and after early.
func (v values) addPaths(flows [][]sample, skip, early, length time.Duration) {
	for k, samples := range flows {
		rate := goodput(samples, skip, length)
		v["path"+strconv.Itoa(k+1)] = rate
		v["sum"] += rate
		v["best"] = max(v["best"], rate)
		if rate == v["best"] {
			v["rtt_first"], v["rtt_after"] = rtts(samples, 0, early), rtts(samples, early, length)
		}
	}
}

// addMultipath adds what MPTCP carried from skip to length, in all and over each path, and its round trips before and after
// early.
func (v values) addMultipath(samples []sample, skip, early, length time.Duration) error {
	v["goodput"] = goodput(samples, skip, length)
	v["rtt_first"], v["rtt_after"] = rtts(samples, 0, early), rtts(samples, early, length)
	for path, bytes := range carried(samples, skip, length) {
		v["path"+strconv.Itoa(path)] = bytes * 8 / 1e6 / (length - skip).Seconds()
	}
	most := 0
	for _, s := range samples {
		most = max(most, len(s.subflows))
	}
	v["subflows"] = float64(most)
	list, err := os.ReadFile("/proc/sys/net/mptcp/available_schedulers")
	if err != nil {
		return fmt.Errorf("list the schedulers: %w", err)
	}
	v["schedulers"] = float64(len(strings.Fields(string(list))))
	if most == 0 {
		return errors.New("the connection was plain TCP")
	}
	return nil
}

func (a *attempt) sumOfLines() (sum float64) {
	for _, l := range a.shape.lines {
		sum += l.up
	}
	return sum
}

// tune sets the case's window and segment size.
func (a *attempt) tune(ctx context.Context) error {
	if w := a.variant.window; w > 0 {
		if err := a.Host(serverHost).Sysctl("net.ipv4.tcp_rmem", fmt.Sprintf("4096 %d %d", min(w, 131072), w)); err != nil {
			return err
		}
	}
	if a.variant.mss == 0 {
		return nil
	}
	for j := 1; j <= a.shape.m; j++ {
		out, err := a.Run(ctx, serverHost, "ip", "route", "show", "table", strconv.Itoa(100+j))
		if err != nil {
			return err
		}
		argv := append([]string{"ip", "route", "replace"}, strings.Fields(strings.TrimSpace(string(out)))...)
		argv = append(argv, "table", strconv.Itoa(100+j), "advmss", strconv.Itoa(a.variant.mss+12)) // timestamps take 12
		if _, err := a.Run(ctx, serverHost, argv...); err != nil {
			return err
		}
	}
	return nil
}

// abandonAll ends flows at the same time.
func abandonAll(flows []*flow) {
	_ = together(len(flows), func(i int) error { flows[i].abandon(); return nil })
}

// beside sends by MPTCP and by TCP over one bottleneck.
func beside(ctx context.Context, a *attempt) (v values, err error) {
	if err := a.setUp(ctx, manage{}); err != nil {
		return nil, err
	}
	congestion, err := a.choose(a.variant.congestion)
	if err != nil {
		return nil, err
	}
	plans := []flowPlan{{multipath: true, from: 1, to: 1, congestion: congestion}}
	for range a.variant.others {
		plans = append(plans, flowPlan{from: 1, to: 1, congestion: "reno"})
	}
	length := a.lengths.fairness
	v = values{}
	err = a.listening(ctx, func(l net.Listener) error {
		flows, err := a.observe(ctx, l, plans, length)
		if err != nil {
			return err
		}
		for i, samples := range flows {
			rate := goodput(samples, length/4, length)
			if i == 0 {
				v["mptcp"] = rate
			} else {
				v["tcp"] += rate / float64(a.variant.others)
			}
		}
		v["ratio"] = v["mptcp"] / v["tcp"]
		return nil
	})
	return v, err
}

// sinceStart returns the time since a flow began.
func (f *flow) sinceStart() time.Duration { return time.Since(f.began) }
