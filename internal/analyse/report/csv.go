package report

import (
	"cmp"
	"encoding/csv"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/analyse/track"
)

// CSV writes tables as connections end: a row for each connection, for each subflow, and for each part of the time in
// which a subflow's round trips were measured.
type CSV struct {
	connections, subflows, roundTrips *csv.Writer
}

// New columns are added at the end, so that the others keep their places.
var (
	connectionColumns = []string{
		"number", "began", "duration_s", "version", "midway", "end", "fallback", "client", "server", "subflows", "shape",
		"from_client_bytes", "from_server_bytes", "packets", "initial_share", "rtt_best_s", "rtt_second_best_s", "rtt_spread_s",
		"retransmitted_bytes", "reinjected_bytes", "reinjections", "handovers", "window_stalls", "window_stalled_s",
		"head_of_line_blockages", "head_of_line_blocked_s", "max_in_flight_bytes", "idle_s", "longest_gap_s",
		"tokens", "checksums", "fallback_at_s", "reinjections_after_loss", "reinjections_after_timeout", "reinjections_after_head_of_line",
		"reinjections_after_subflow_ended", "longest_handover_gap_s", "add_addr", "add_addr_repeated", "add_addr_echoed", "add_addr_followed",
		"remove_addr", "remove_addr_repeated", "remove_addr_followed", "mp_prio", "mp_prio_repeated", "mp_prio_followed", "anomalies",
	}
	subflowColumns = []string{
		"connection", "subflow", "client_address", "client_port", "server_address", "server_port", "initial", "opened_by", "state", "hmac",
		"backup", "join_delay_s", "ended_s", "ended_by", "unused", "unused_better_rtt", "rtt_s", "rtt_handshake_s", "rtt_samples", "goodput_bit_s",
		"from_client_packets", "from_client_bytes", "from_client_new_data", "from_client_retransmitted", "from_client_reinjected",
		"from_server_packets", "from_server_bytes", "from_server_new_data", "from_server_retransmitted", "from_server_reinjected",
		"reset_reason", "mp_fail", "rtt_change_s", "from_client_rtt_s", "from_client_rtt_min_s", "from_client_rtt_max_s", "from_client_out_of_order",
		"from_server_rtt_s", "from_server_rtt_min_s", "from_server_rtt_max_s", "from_server_out_of_order",
	}
	roundTripColumns = []string{"connection", "subflow", "data_of", "from_s", "to_s", "rtt_s", "samples"}
)

// NewCSV writes the headers.
func NewCSV(connections, subflows, roundTrips io.Writer) (*CSV, error) {
	c := &CSV{csv.NewWriter(connections), csv.NewWriter(subflows), csv.NewWriter(roundTrips)}
	return c, errors.Join(c.connections.Write(connectionColumns), c.subflows.Write(subflowColumns), c.roundTrips.Write(roundTripColumns))
}

func float(v float64) string { return strconv.FormatFloat(v, 'g', 9, 64) }

func optional(v *float64) string {
	if v == nil {
		return ""
	}
	return float(*v)
}

func count[T uint64 | uint32 | int](n T) string { return strconv.FormatUint(uint64(n), 10) }

func boolean(v bool) string { return strconv.FormatBool(v) }

// Write writes the rows of a connection.
func (c *CSV) Write(r *track.Record) error {
	if err := c.connections.Write(connectionRow(r)); err != nil {
		return err
	}
	for i := range r.Subflows {
		s := &r.Subflows[i]
		if err := c.subflows.Write(subflowRow(r.Number, i, s)); err != nil {
			return err
		}
		for _, of := range []struct {
			side string
			d    *track.Direction
		}{{"client", &s.FromClient}, {"server", &s.FromServer}} {
			for _, p := range of.d.RTTOverTime.Periods() {
				row := []string{count(r.Number), count(i), of.side, float(p.From), float(p.To), float(p.Mean), count(p.Samples)}
				if err := c.roundTrips.Write(row); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func connectionRow(r *track.Record) []string {
	version, fallback, fallbackAt := "", "", ""
	if r.Version != nil {
		version = count(*r.Version)
	}
	if r.Fallback != nil {
		fallback, fallbackAt = r.Fallback.Cause, float(r.Fallback.At)
	}
	var anomalies []string
	for _, name := range slices.Sorted(maps.Keys(r.Anomalies)) {
		anomalies = append(anomalies, name+"="+count(r.Anomalies[name]))
	}
	gap := ""
	if len(r.Handovers) > 0 {
		gap = float(slices.MaxFunc(r.Handovers, func(a, b track.Handover) int { return cmp.Compare(a.Gap, b.Gap) }).Gap)
	}
	first, after := r.Subflows[0], r.ReinjectedAfter
	row := []string{
		count(r.Number), r.Began.Format(time.RFC3339Nano), float(r.Duration), version, boolean(r.Midway), r.End, fallback,
		first.Client.String(), first.Server.String(), count(len(r.Subflows)), r.Shape,
		count(r.FromClient), count(r.FromServer), count(r.Packets), optional(r.ViaInitial), optional(r.BestRTT), optional(r.SecondRTT), optional(r.RTTSpread),
		count(r.Retransmitted), count(r.Reinjected), count(r.Reinjections), count(len(r.Handovers)), count(r.WindowStalls), float(r.WindowStalled),
		count(r.Blockages), float(r.Blocked), count(r.MaxFlight), float(r.Idle), float(r.LongestGap),
		tokenWords(r.Tokens, " "), boolean(r.Checksums), fallbackAt, count(after["loss"]), count(after["timeout"]), count(after["head-of-line"]),
		count(after["subflow-ended"]), gap,
	}
	signals := signalsOf(r)
	add, remove, priority := signals[track.AddAddr], signals[track.RemoveAddr], signals[track.Priority]
	return append(row, count(add.Count), count(add.Repeated), count(add.Echoed), count(add.Followed),
		count(remove.Count), count(remove.Repeated), count(remove.Followed), count(priority.Count), count(priority.Repeated), count(priority.Followed),
		strings.Join(anomalies, " "))
}

func subflowRow(connection uint32, i int, s *track.Subflow) []string {
	better, reason := "", ""
	if s.UnusedBetter != nil {
		better = boolean(*s.UnusedBetter)
	}
	if s.Reset != nil {
		reason = count(*s.Reset)
	}
	c, d := &s.FromClient, &s.FromServer
	return []string{
		count(connection), count(i), s.Client.Addr().String(), count(int(s.Client.Port())), s.Server.Addr().String(), count(int(s.Server.Port())),
		boolean(s.Initial), s.OpenedBy, s.State, s.HMAC, boolean(s.Backup), optional(s.JoinDelay), optional(s.Ended), s.EndedBy,
		boolean(s.Unused), better, optional(s.RTT), optional(s.HandshakeRTT), count(s.RTTSamples), float(s.Goodput),
		count(c.Packets), count(c.Bytes), count(c.NewData), count(c.Retransmitted), count(c.Reinjected),
		count(d.Packets), count(d.Bytes), count(d.NewData), count(d.Retransmitted), count(d.Reinjected),
		reason, boolean(s.Failed), optional(s.RTTChange), optional(c.RTT), optional(c.MinRTT), optional(c.MaxRTT), count(c.OutOfOrder),
		optional(d.RTT), optional(d.MinRTT), optional(d.MaxRTT), count(d.OutOfOrder),
	}
}

// Flush writes the buffered rows.
func (c *CSV) Flush() error {
	var errs []error
	for _, w := range []*csv.Writer{c.connections, c.subflows, c.roundTrips} {
		w.Flush()
		errs = append(errs, w.Error())
	}
	return errors.Join(errs...)
}
