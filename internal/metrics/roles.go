package metrics

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/detour-collective/dcol/internal/api"
)

// path is the kind of a path and its waypoint. The waypoint is empty for the direct path.
type path struct{ kind, waypoint string }

func (p path) labels(more ...[2]string) labels {
	return append(labels{{"kind", p.kind}, {"waypoint", p.waypoint}}, more...)
}

func (w writer) client(c *api.Using) {
	n := &c.Counters
	w.gauge("dcol_connections", "Live MPTCP connections of this host's programs.", float64(len(c.Connections)), nil)
	w.gauge("dcol_plain_connections", "Live connections that are plain TCP although the program's socket is MPTCP.", float64(len(c.Plain)), nil)
	w.counter("dcol_connections_total", "MPTCP connections of this host's programs.", float64(n.Connections), nil)
	w.counter("dcol_subflows_requested_total", "Subflows that the kernel was asked for.", float64(n.SubflowsAsked), nil)
	w.counter("dcol_subflows_established_total", "Subflows that were established, beside each connection's first.", float64(n.SubflowsUp), nil)
	w.counter("dcol_subflows_refused_total", "Subflows that the kernel or the server refused.", float64(n.SubflowsRefused), nil)
	w.counter("dcol_kernel_events_lost_total", "How often events of the kernel were lost.", float64(n.EventsLost), nil)
	w.counter("dcol_resyncs_total", "How often all connections were read from the kernel anew.", float64(n.Resyncs), nil)
	w.subflows(c.Connections)
	for _, x := range n.Carried {
		of := path{x.Kind, x.Waypoint}
		w.counter("dcol_path_received_bytes_total", "Payload received over a path", float64(x.Received), of.labels())
		w.counter("dcol_path_sent_bytes_total", "Payload sent over a path and acknowledged", float64(x.Sent), of.labels())
	}
	w.lifetimes(n.Lifetimes)
	for _, x := range c.Waypoints {
		at := labels{{"waypoint", x.Name}, {"address", x.Addr.Addr().String()}}
		up := x.State == api.WaypointUp
		w.gauge("dcol_waypoint_up", "Whether a session with the waypoint's address is up and it gives detours.", flag(up), at)
		if up || x.State == api.WaypointClosed {
			w.gauge("dcol_waypoint_round_trip_seconds", "The session's round trip.", x.RTT/1000, at)
			w.gauge("dcol_waypoint_loss_ratio", "The share of the session's own packets that were lost.", x.Loss, at)
		}
	}
}

// subflows counts live subflows by path and state.
func (w writer) subflows(list []api.Connection) {
	type key struct {
		path
		state string
	}
	live := make(map[key]int)
	for _, c := range list {
		for _, s := range c.Subflows {
			live[key{path{s.Kind, s.Waypoint}, string(s.State)}]++
		}
	}
	for k, n := range live {
		w.gauge("dcol_subflows", "Live subflows.", float64(n), k.labels([2]string{"state", k.state}))
	}
}

func (w writer) lifetimes(h api.Histogram) {
	buckets := make(map[float64]uint64, len(h.Bounds))
	var sum uint64
	for i, n := range h.Counts {
		sum += n
		if i < len(h.Bounds) {
			buckets[h.Bounds[i]] = sum
		}
	}
	desc := prometheus.NewDesc("dcol_connection_duration_seconds", "How long connections lived that have ended.", nil, nil)
	w.out <- prometheus.MustNewConstHistogram(desc, sum, h.Sum, buckets)
}

func (w writer) serving(s *api.Serving) {
	var flows int
	var bytes uint64
	present := 0
	for i := range s.Members {
		flows += s.Members[i].Flows
		bytes += s.Members[i].Bytes
		if s.Members[i].Present() {
			present++
		}
	}
	w.gauge("dcol_served_members", "Members that use this waypoint now.", float64(present), nil)
	w.gauge("dcol_served_sessions", "Sessions of members.", float64(s.Sessions), nil)
	w.gauge("dcol_served_mappings", "Mappings that members have.", float64(s.Mappings), nil)
	w.gauge("dcol_served_connections", "Members' connections through this waypoint.", float64(flows), nil)
	w.gauge("dcol_served_live_bytes", "What the live connections of members carried, in both directions.", float64(bytes), nil)
	if s.FastFlows != nil {
		w.gauge("dcol_served_fast_connections", "Members' connections that bypass netfilter.", float64(*s.FastFlows), nil)
	}
	w.counter("dcol_requests_granted_total", "Requests of members that were granted.", float64(s.Granted), nil)
	for _, code := range slices.Sorted(maps.Keys(s.Refused)) {
		w.counter("dcol_requests_refused_total", "Requests of members that were refused.", float64(s.Refused[code]), labels{{"reason", code}})
	}
	w.gauge("dcol_waypoint_open", "Whether members may open connections through this waypoint.", flag(s.Given.Open), nil)
	if s.Given.QuotaBytes > 0 {
		w.gauge("dcol_quota_bytes", "The month's quota.", float64(s.Given.QuotaBytes), nil)
		w.gauge("dcol_quota_used_bytes", "What was used of the month's quota.", float64(s.Given.UsedBytes), nil)
	}
	if i := s.InBand; i != nil {
		w.counter("dcol_in_band_syns_accepted_total", "In-band SYNs that were accepted.", float64(i.Accepted), nil)
		for reason, n := range map[string]uint64{
			"unknown-address": i.UnknownAddress, "bad-authenticator": i.BadAuthenticator, "replayed": i.Replayed, "malformed": i.Malformed,
		} {
			w.counter("dcol_in_band_syns_rejected_total", "In-band SYNs that were rejected.", float64(n), labels{{"reason", reason}})
		}
	}
}

func (w writer) relay(r *api.Relay) {
	for _, p := range r.Parts {
		part := labels{{"part", p.Name}}
		w.gauge("dcol_relay_listening", "Whether a part of the relay works.", flag(p.Problem == ""), part)
		w.gauge("dcol_relay_connections", "Converted connections.", float64(p.Open), part)
		w.counter("dcol_relay_accepted_total", "Connections that were accepted since the relay started.", float64(p.Accepted), part)
		w.counter("dcol_relay_refused_total", "Connections whose opening failed since the relay started.", float64(p.Refused), part)
		w.counter("dcol_relay_bytes_total", "Bytes of both directions since the relay started.", float64(p.Bytes), part)
	}
}

func (w writer) collective(c *api.Collective) {
	w.gauge("dcol_directory_members", "Members in this host's copy of the directory.", float64(c.Members), nil)
	w.gauge("dcol_directory_behind", "Whether changes of the directory may be missing.", flag(c.Behind), nil)
	w.gauge("dcol_coordinator_connected", "Whether there is a connection to a coordinator.", flag(c.Coordinator.Connected), nil)
	if !c.Certificate.Until.IsZero() {
		w.gauge("dcol_certificate_expires_timestamp_seconds", "When this host's certificate expires, in Unix time.", unix(c.Certificate.Until), nil)
	}
	w.gauge("dcol_certificate_renewal_failures", "Renewals that failed in a row.", float64(c.Certificate.Failures), nil)
}

func (w writer) coordinator(c *api.Coordinator) {
	w.gauge("dcol_coordinator_members", "Members of the collective.", float64(c.Members), nil)
	w.gauge("dcol_coordinator_unreachable_waypoints", "Waypoints that other members cannot reach.", float64(len(c.Unreachable)), nil)
	w.counter("dcol_coordinator_messages_total", "Messages from members.", float64(c.Messages), nil)
	w.counter("dcol_coordinator_messages_refused_total", "Messages beyond a member's limit.", float64(c.Refused), nil)
	w.counter("dcol_coordinator_floods_total", "Members that were cut off because they exceeded their limit.", float64(c.Floods), nil)
}
