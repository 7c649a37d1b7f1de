package serving

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

// mostFlows bounds the connections that Log returns.
const mostFlows = 500

// Log returns the latest connections in the attribution log that fit a request, the earliest first.
func Log(file string, r api.LogRequest) (api.Log, error) {
	filter, err := logFilter(r)
	if err != nil {
		return api.Log{}, err
	}
	files, err := attribution.FilesOf(file)
	if err != nil {
		return api.Log{}, err
	}
	flows, _, err := attribution.Flows(files, filter)
	if err != nil {
		return api.Log{}, err
	}
	out := api.Log{Schema: api.LogSchema, Flows: []api.LogFlow{}, Older: max(len(flows)-mostFlows, 0)}
	for _, f := range slices.Clip(flows[out.Older:]) {
		out.Flows = append(out.Flows, DescribeFlow(f))
	}
	return out, nil
}

func logFilter(r api.LogRequest) (f attribution.Filter, err error) {
	if f.Member = r.Member; r.Member != "" {
		if err := collective.CheckName(r.Member); err != nil {
			return f, err
		}
	}
	if r.Server != "" {
		if addr, err := netip.ParseAddr(r.Server); err == nil {
			f.Server = netip.AddrPortFrom(addr, 0)
		} else if f.Server, err = netip.ParseAddrPort(r.Server); err != nil {
			return f, fmt.Errorf("%q is not an address such as 203.0.113.5, 203.0.113.5:443 or [2001:db8::5]:443", r.Server)
		}
	}
	if r.Since != "" {
		if f.Since, err = time.Parse(time.RFC3339, r.Since); err != nil {
			return f, fmt.Errorf("%q is not a time such as 2026-03-01T12:00:00Z", r.Since)
		}
	}
	return f, nil
}

// DescribeFlow returns a connection in the API's form.
func DescribeFlow(f attribution.Flow) api.LogFlow {
	out := api.LogFlow{
		Opened: f.Opened, Closed: f.Closed, Member: f.Member, Serial: f.Serial, Kind: f.Kind, Client: f.Client, Server: f.Server, Egress: f.Egress,
		BytesFromClient: f.BytesFromClient, BytesToClient: f.BytesToClient,
	}
	if !f.Session.IsZero() {
		out.Session = f.Session.String()
	}
	return out
}
