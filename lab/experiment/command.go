package experiment

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/scenario"
)

// command measures programs of the scenario's author. They may use sockets in any way, so the goodput is computed
// from the counters of the client's kernel: bytes that the peer acknowledged and bytes received, from the skip to the
// end. MPTCP may carry some bytes on two paths, which then count twice.
func (x *execution) command(ctx context.Context) error {
	w := x.workload
	local := x.local
	if !local.IsValid() {
		local = x.lab.net.Host(w.Client).Addr4()
		if x.target.Addr().Is6() {
			local = x.lab.net.Host(w.Client).Addr6()
		}
	}
	argv := expand(w.ClientCommand, x.target, local, x.proxy())
	name := filepath.Base(argv[0])
	p, err := x.startClient(ctx, name, argv, nil)
	if err != nil {
		return err
	}
	var limit <-chan time.Time // nil: the client exits when it has finished
	if w.Duration > 0 {
		limit = time.After(w.Duration.Std())
	}
	stopped := false
	select {
	case <-p.Ended():
	case <-limit:
		stopped = true
	}
	x.sampler.take(true) // before the program ends and its sockets are gone
	end := time.Since(x.sampler.began)
	p.Stop()
	x.result.CompletionSeconds = time.Since(x.began).Seconds()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if p.Err() != nil && !stopped {
		return p.Failure()
	}
	from := x.began.Add(w.Skip.Std()).Sub(x.sampler.began)
	carried := x.sampler.at("", end) - x.sampler.at("", from)
	if end <= from || carried <= 0 {
		return p.Trouble(errors.New("nothing was carried after the skip"))
	}
	x.result.Bytes = int64(carried)
	x.result.MeasuredSeconds = (end - from).Seconds()
	x.result.GoodputMbps = carried * 8 / 1e6 / x.result.MeasuredSeconds
	return nil
}

// expand replaces the placeholders in a command line by addresses, the port and the proxy's URL.
func expand(argv []string, at netip.AddrPort, local netip.Addr, proxy string) []string {
	fill := strings.NewReplacer(scenario.AddressMark, at.Addr().String(), scenario.PortMark, strconv.Itoa(int(at.Port())),
		scenario.LocalMark, local.String(), scenario.ProxyMark, proxy)
	out := make([]string, len(argv))
	for i, a := range argv {
		out[i] = fill.Replace(a)
	}
	return out
}
