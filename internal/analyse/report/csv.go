package report

import (
	"encoding/csv"
	"io"
	"strconv"
	"time"

	"github.com/detour-collective/dcol/internal/analyse/track"
)

// CSV writes tables as connections end: one row for each connection, and one for each subflow.
type CSV struct {
	connections, subflows *csv.Writer
}

var (
	connectionColumns = []string{
		"number", "began", "duration_s", "version", "midway", "end", "fallback", "client", "server", "subflows", "shape",
		"from_client_bytes", "from_server_bytes", "packets", "initial_share", "rtt_best_s", "rtt_second_best_s", "rtt_spread_s",
		"retransmitted_bytes", "reinjected_bytes", "reinjections", "handovers", "window_stalls", "window_stalled_s",
		"head_of_line_blockages", "head_of_line_blocked_s", "max_in_flight_bytes", "idle_s", "longest_gap_s",
	}
	subflowColumns = []string{
		"connection", "subflow", "client_address", "client_port", "server_address", "server_port", "initial", "opened_by", "state", "hmac",
		"backup", "join_delay_s", "ended_s", "ended_by", "unused", "unused_better_rtt", "rtt_s", "rtt_handshake_s", "rtt_samples", "goodput_bit_s",
		"from_client_packets", "from_client_bytes", "from_client_new_data", "from_client_retransmitted", "from_client_reinjected",
		"from_server_packets", "from_server_bytes", "from_server_new_data", "from_server_retransmitted", "from_server_reinjected",
	}
)

// NewCSV writes the headers.
func NewCSV(connections, subflows io.Writer) (*CSV, error) {
	c := &CSV{csv.NewWriter(connections), csv.NewWriter(subflows)}
	if err := c.connections.Write(connectionColumns); err != nil {
		return nil, err
	}
	return c, c.subflows.Write(subflowColumns)
}

func float(v float64) string { return strconv.FormatFloat(v, 'g', 9, 64) }

func optional(v *float64) string {
	if v == nil {
		return ""
	}
	return float(*v)
}

func count[T uint64 | uint32 | int](n T) string { return strconv.FormatUint(uint64(n), 10) }

// Write writes the rows of a connection.
func (c *CSV) Write(r *track.Record) error {
	version, fallback := "", ""
	if r.Version != nil {
		version = count(*r.Version)
	}
	if r.Fallback != nil {
		fallback = r.Fallback.Cause
	}
	first := r.Subflows[0]
	err := c.connections.Write([]string{
		count(r.Number), r.Began.Format(time.RFC3339Nano), float(r.Duration), version, strconv.FormatBool(r.Midway), r.End, fallback,
		first.Client.String(), first.Server.String(), count(len(r.Subflows)), r.Shape,
		count(r.FromClient), count(r.FromServer), count(r.Packets), optional(r.ViaInitial), optional(r.BestRTT), optional(r.SecondRTT), optional(r.RTTSpread),
		count(r.Retransmitted), count(r.Reinjected), count(r.Reinjections), count(len(r.Handovers)), count(r.WindowStalls), float(r.WindowStalled),
		count(r.Blockages), float(r.Blocked), count(r.MaxFlight), float(r.Idle), float(r.LongestGap),
	})
	for i := range r.Subflows {
		if err != nil {
			return err
		}
		s := &r.Subflows[i]
		better := ""
		if s.UnusedBetter != nil {
			better = strconv.FormatBool(*s.UnusedBetter)
		}
		err = c.subflows.Write([]string{
			count(r.Number), count(i), s.Client.Addr().String(), count(int(s.Client.Port())), s.Server.Addr().String(), count(int(s.Server.Port())),
			strconv.FormatBool(s.Initial), s.OpenedBy, s.State, s.HMAC, strconv.FormatBool(s.Backup), optional(s.JoinDelay), optional(s.Ended), s.EndedBy,
			strconv.FormatBool(s.Unused), better, optional(s.RTT), optional(s.HandshakeRTT), count(s.RTTSamples), float(s.Goodput),
			count(s.FromClient.Packets), count(s.FromClient.Bytes), count(s.FromClient.NewData), count(s.FromClient.Retransmitted), count(s.FromClient.Reinjected),
			count(s.FromServer.Packets), count(s.FromServer.Bytes), count(s.FromServer.NewData), count(s.FromServer.Retransmitted), count(s.FromServer.Reinjected),
		})
	}
	return err
}

// Flush writes the buffered rows.
func (c *CSV) Flush() error {
	c.connections.Flush()
	c.subflows.Flush()
	if err := c.connections.Error(); err != nil {
		return err
	}
	return c.subflows.Error()
}
