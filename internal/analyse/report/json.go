package report

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/detour-collective/dcol/internal/analyse"
	"github.com/detour-collective/dcol/internal/analyse/track"
)

// Schema is the version of the JSON.
const Schema = "dcol.analyse/1"

// JSON writes one object: connections as they end, then the capture and the summary.
type JSON struct {
	to    io.Writer
	begun bool
}

// NewJSON begins the object.
func NewJSON(to io.Writer) (*JSON, error) {
	_, err := fmt.Fprintf(to, "{\"schema\":%q,\n\"connections\":[", Schema)
	return &JSON{to: to}, err
}

// Write writes a connection.
func (j *JSON) Write(r *track.Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	separator := ",\n"
	if !j.begun {
		j.begun, separator = true, "\n"
	}
	_, err = fmt.Fprintf(j.to, "%s%s", separator, b)
	return err
}

// Close writes the rest.
func (j *JSON) Close(counts analyse.Counts, t *Totals) error {
	capture, err := json.MarshalIndent(counts, "", "  ")
	if err != nil {
		return err
	}
	summary, err := json.MarshalIndent(t.Summary(), "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(j.to, "\n],\n\"capture\":%s,\n\"summary\":%s}\n", capture, summary)
	return err
}

// Summary is the JSON form of Totals.
type Summary struct {
	Connections       uint64                `json:"connections"`
	Midway            uint64                `json:"midway"`
	Versions          map[string]uint64     `json:"versions"`
	Fallbacks         map[string]uint64     `json:"fallbacks"`
	FallbackClients   int                   `json:"fallback_client_addresses"`
	Ends              map[string]uint64     `json:"ends"`
	Shapes            map[string]uint64     `json:"shapes"`
	Subflows          map[int]uint64        `json:"connections_by_subflows"`
	States            map[string]uint64     `json:"subflow_states"`
	Ports             map[uint16]Traffic    `json:"ports"`
	IPv4              uint64                `json:"connections_over_ipv4"`
	IPv6              uint64                `json:"connections_over_ipv6"`
	ClientAddresses   int                   `json:"client_addresses"`
	ClientPrefixes    int                   `json:"client_prefixes"`
	Bytes             uint64                `json:"bytes"`
	Empty             uint64                `json:"empty_connections"`
	Duration          *Quantiles            `json:"duration,omitempty"`
	Size              *Quantiles            `json:"size,omitempty"`
	Goodput           *Quantiles            `json:"goodput,omitempty"`
	SubflowGoodput    *Quantiles            `json:"subflow_goodput,omitempty"`
	JoinDelay         *Quantiles            `json:"join_delay,omitempty"`
	FirstJoinDelay    *Quantiles            `json:"first_join_delay,omitempty"`
	JoinsWithin       map[string]uint64     `json:"joins_within"`
	SubflowRTT        *Quantiles            `json:"subflow_rtt,omitempty"`
	SubflowRTTChange  *Quantiles            `json:"subflow_rtt_change,omitempty"`
	RTTSpread         *Quantiles            `json:"rtt_spread,omitempty"`
	SpreadWithin10ms  uint64                `json:"rtt_spread_within_10ms"`
	SpreadAbove1s     uint64                `json:"rtt_spread_above_1s"`
	InitialShare      [3]InitialShare       `json:"initial_share_by_size"`
	Additional        uint64                `json:"additional_subflows"`
	Unused            uint64                `json:"unused_subflows"`
	WithUnused        uint64                `json:"connections_with_unused_subflows"`
	UnusedBelow1kB    uint64                `json:"connections_with_unused_subflows_below_1kb"`
	UnusedBelow20kB   uint64                `json:"connections_with_unused_subflows_below_20kb"`
	UnusedCompared    uint64                `json:"unused_with_known_rtt"`
	UnusedBetter      uint64                `json:"unused_with_better_rtt"`
	Several           uint64                `json:"connections_with_several_subflows"`
	Reinjecting       uint64                `json:"reinjecting_connections"`
	Retransmitting    uint64                `json:"retransmitting_connections"`
	Reinjected        uint64                `json:"reinjected_bytes"`
	Retransmitted     uint64                `json:"retransmitted_bytes"`
	ReinjectedAfter   map[string]uint64     `json:"reinjections_after"`
	Handovers         map[string]uint64     `json:"handovers"`
	HandoverGap       *Quantiles            `json:"handover_gap,omitempty"`
	Signals           map[string]Signals    `json:"signals"`
	EchoDelay         *Quantiles            `json:"echo_delay,omitempty"`
	WindowStalls      uint64                `json:"window_stalls"`
	WindowStalled     float64               `json:"window_stalled"`
	StalledConns      uint64                `json:"window_stalled_connections"`
	Blockages         uint64                `json:"head_of_line_blockages"`
	BlockedConns      uint64                `json:"head_of_line_blocked_connections"`
	Blocked           float64               `json:"head_of_line_blocked"`
	MaxInFlight       *Quantiles            `json:"max_in_flight,omitempty"`
	Idle              *Quantiles            `json:"idle,omitempty"`
	Anomalies         map[string]uint64     `json:"anomalies"`
	RetransmissionsAt [Bins]uint64          `json:"retransmissions_by_time"`
	ReinjectionsAt    [Bins]uint64          `json:"reinjections_by_time"`
	Distributions     map[string][]Point    `json:"distributions"`
	SecondBest        map[string]*Quantiles `json:"second_best_rtt_by_best"`
}

// Summary returns the JSON form.
func (t *Totals) Summary() Summary {
	s := Summary{
		Connections: t.Connections, Midway: t.Midway, Versions: t.Versions, Fallbacks: t.Fallbacks, Ends: t.Ends, Shapes: t.Shapes,
		Subflows: t.Subflows, States: t.States, Ports: t.Ports, Bytes: t.Bytes, Empty: t.Empty, Duration: t.Duration.Quantiles(),
		Size: t.Size.Quantiles(), Goodput: t.Goodput.Quantiles(), JoinDelay: t.Joins.Quantiles(), SubflowRTT: t.SubflowRTT.Quantiles(),
		RTTSpread: t.Spread.Quantiles(), InitialShare: t.Initial, Additional: t.Additional, Unused: t.Unused, UnusedBetter: t.UnusedBetter,
		Several: t.Several, Reinjecting: t.Reinjecting, Retransmitting: t.Retransmitting, Reinjected: t.Reinjected, Retransmitted: t.Retransmitted,
		ReinjectedAfter: t.ReinjectedAfter, Handovers: t.Handovers, HandoverGap: t.HandoverGaps.Quantiles(), Signals: t.Signals,
		WindowStalls: t.Stalls, WindowStalled: t.Stalled, Blockages: t.Blockages, Blocked: t.Blocked, MaxInFlight: t.MaxFlight.Quantiles(),
		Idle: t.Idle.Quantiles(), Anomalies: t.Anomalies, RetransmissionsAt: t.RepeatAt, ReinjectionsAt: t.ReinjectionAt,
		Distributions: map[string][]Point{
			"goodput": t.Goodput.Points(), "subflow_goodput": t.SubflowGoodput.Points(), "first_join_delay": t.FirstJoins.Points(),
			"subflow_rtt_change": t.RTTChange.Points(), "max_in_flight": t.MaxFlight.Points(), "idle": t.Idle.Points(),
			"duration": t.Duration.Points(), "size": t.Size.Points(), "join_delay": t.Joins.Points(), "rtt_spread": t.Spread.Points(),
			"subflow_rtt": t.SubflowRTT.Points(), "reinjected_share": t.ReinjectedShare.Points(), "retransmitted_share": t.RepeatedShare.Points(),
		},
		SecondBest: map[string]*Quantiles{}, IPv4: t.IPv4, IPv6: t.IPv6, EchoDelay: t.EchoDelay.Quantiles(),
		SpreadWithin10ms: t.Within10ms, SpreadAbove1s: t.Above1s, UnusedCompared: t.UnusedCompared, StalledConns: t.StalledConns, BlockedConns: t.BlockedConns,
		SubflowGoodput: t.SubflowGoodput.Quantiles(), FirstJoinDelay: t.FirstJoins.Quantiles(), SubflowRTTChange: t.RTTChange.Quantiles(),
		JoinsWithin: map[string]uint64{"1s": t.JoinsWithin[0], "60s": t.JoinsWithin[1], "3600s": t.JoinsWithin[2]}, FallbackClients: len(t.fallen),
		WithUnused: t.WithUnused, UnusedBelow1kB: t.UnusedSize[0], UnusedBelow20kB: t.UnusedSize[1],
	}
	for i, name := range []string{"below_40ms", "below_100ms", "below_200ms", "above"} {
		s.SecondBest[name] = t.SecondBest[i].Quantiles()
	}
	s.ClientAddresses, s.ClientPrefixes = t.Clients()
	return s
}
