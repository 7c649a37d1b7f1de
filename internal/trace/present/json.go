package present

import (
	"encoding/hex"
	"slices"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
)

// Schema is the version of Trace.
const Schema = "dcol.trace/1"

// Trace is a trace's JSON. Times are in milliseconds.
type Trace struct {
	Schema      string    `json:"schema"`
	Name        string    `json:"name,omitempty"`
	Source      string    `json:"source"`
	Destination string    `json:"destination"`
	Probe       string    `json:"probe"`
	Distance    int       `json:"distance"` // 0: unknown
	Sure        bool      `json:"distance_verified"`
	Hops        []Hop     `json:"hops"`
	Answer      *Answer   `json:"answer,omitempty"`
	Findings    []Finding `json:"findings"`
	Notes       []string  `json:"notes"`
	Sent        int       `json:"packets_sent"`
	TookMS      float64   `json:"took_ms"`
}

// Hop is one distance.
type Hop struct {
	Distance int     `json:"distance"`
	Probes   int     `json:"probes"`
	Quotes   []Quote `json:"quotes"`
}

// Quote is an ICMP error.
type Quote struct {
	From    string   `json:"from"`
	RTTMS   float64  `json:"rtt_ms"`
	Type    uint8    `json:"icmp_type"`
	Code    uint8    `json:"icmp_code"`
	Bytes   int      `json:"bytes"` // of the packet behind its IP header
	Full    bool     `json:"full"`
	Labels  []uint32 `json:"mpls_labels,omitempty"`
	Changes []Change `json:"changes"`
}

// Change is a field that a quote shows changed.
type Change struct {
	Field string `json:"field"`
	Kind  string `json:"kind"`
	Sent  string `json:"sent,omitempty"`
	Seen  string `json:"seen,omitempty"`
}

// Answer is the destination's packet.
type Answer struct {
	RTTMS float64 `json:"rtt_ms,omitempty"`
	Text  string  `json:"text"`
	Bytes string  `json:"bytes"` // hexadecimal
	// Reply compares the options of a SYN+ACK with those of the SYN.
	Reply *Reply `json:"reply,omitempty"`
}

// Reply compares a SYN+ACK with the SYN. A server repeats window scale, SACK permitted, timestamps and MP_CAPABLE if it
// uses them.
type Reply struct {
	Unanswered []string `json:"unanswered"`         // fields of the SYN that are not in the SYN+ACK
	Unasked    []string `json:"unasked"`            // fields of the SYN+ACK that were not in the SYN
	SentMSS    uint16   `json:"sent_mss,omitempty"` // absent: none
	MSS        uint16   `json:"mss,omitempty"`
	Echoed     bool     `json:"mpcapable_echoed,omitempty"` // MP_CAPABLE came back without a key
}

// Finding is a change on the path. It happened behind hop After, 0 being this host, and no further than hop By.
type Finding struct {
	Change
	After        int      `json:"after"`
	By           int      `json:"by"`
	AfterAddress string   `json:"after_address,omitempty"`
	ByAddress    string   `json:"by_address"`
	Consequences []string `json:"consequences,omitempty"`
	Quoting      int      `json:"quoting"`
	Unexplained  bool     `json:"unexplained,omitempty"`
	Reverted     bool     `json:"reverted,omitempty"`
	Text         string   `json:"text"`
}

// JSON returns a trace's JSON.
func JSON(name string, p *trace.Path, sent *packet.Packet) Trace {
	t := Trace{
		Schema: Schema, Name: name, Source: p.Source.String(), Destination: p.Destination.String(), Probe: ProbeText(sent),
		Distance: p.Distance, Sure: p.Sure, Hops: []Hop{}, Findings: []Finding{}, Notes: append([]string{}, Notes(p)...),
		Sent: p.Sent, TookMS: float64(p.Took.Microseconds()) / 1000,
	}
	for _, h := range p.Hops {
		hop := Hop{Distance: h.Distance, Probes: h.Probes, Quotes: []Quote{}}
		for _, q := range h.Quotes {
			hop.Quotes = append(hop.Quotes, Quote{
				From: q.From.String(), RTTMS: float64(q.RTT.Microseconds()) / 1000, Type: q.Type, Code: q.Code,
				Bytes: q.Bytes, Full: q.Full, Labels: q.Labels, Changes: changes(q.Changes),
			})
		}
		t.Hops = append(t.Hops, hop)
	}
	if a := p.Answer; a != nil {
		t.Answer = &Answer{RTTMS: float64(a.RTT.Microseconds()) / 1000, Text: answered(a.Packet), Bytes: hex.EncodeToString(a.Bytes)}
		if r, ok := p.Probe.Reply(a.Packet); ok {
			t.Answer.Reply = &Reply{Unanswered: names(r.Unanswered), Unasked: names(r.Unasked), SentMSS: r.SentMSS, MSS: r.MSS, Echoed: r.Echoed}
		}
	}
	for _, f := range p.Findings {
		t.Findings = append(t.Findings, FindingJSON(f))
	}
	return t
}

func names(fields []compare.Field) []string {
	list := []string{}
	for _, f := range fields {
		list = append(list, string(f))
	}
	return list
}

// FindingJSON returns a finding's JSON.
func FindingJSON(f compare.Finding) Finding {
	j := Finding{
		Change: change(f.Change), After: f.After, By: f.By, ByAddress: f.ByAddr.String(), Quoting: f.Quoting,
		Unexplained: f.Unexplained, Reverted: f.Reverted, Text: What(f) + " " + Where(f),
	}
	if f.AfterAddr.IsValid() {
		j.AfterAddress = f.AfterAddr.String()
	}
	for _, c := range f.Consequences {
		j.Consequences = append(j.Consequences, string(c))
	}
	slices.Sort(j.Consequences)
	return j
}

func changes(all []compare.Change) []Change {
	list := []Change{}
	for _, c := range all {
		list = append(list, change(c))
	}
	return list
}

func change(c compare.Change) Change {
	return Change{Field: string(c.Field), Kind: string(c.Kind()), Sent: c.Sent.Text, Seen: c.Seen.Text}
}
