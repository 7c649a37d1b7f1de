// Package recipe answers common questions about a path by one or more traces each: does MPTCP get through, is there
// a NAT or a proxy, which options are changed. A recipe returns a verdict in words, with its evidence.
package recipe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
	"github.com/detour-collective/dcol/internal/trace/present"
)

// Session holds the network, the endpoints and the limits that recipes work with.
type Session struct {
	Net                 trace.Network
	Source, Destination netip.Addr
	Port                uint16 // of the server
	Random              *rand.Rand
	// Hold holds back the kernel's resets of a connection from a port of this host to one of the destination's.
	Hold    func(source, destination uint16) error
	MaxHops int
	silent  []int       // distances that did not answer in the first trace
	first   *trace.Path // the first trace
	// Wait bounds the wait for an answer. 0: 2 s.
	Wait time.Duration
}

// Outcome is a verdict in a word.
type Outcome string

// The outcomes.
const (
	Good    Outcome = "ok"      // nothing interferes
	Changed Outcome = "changed" // something on the path does
	Blocked Outcome = "blocked" // packets do not get through
	Unknown Outcome = "unknown" // the path does not show it
)

// Confidence rates how well the evidence supports a verdict.
type Confidence string

// The levels.
const (
	Certain Confidence = "certain" // quotes or answers show it
	Likely  Confidence = "likely"  // it follows from what was seen, but there are other causes
	Open    Confidence = "open"    // nothing was seen that decides it
)

// Verdict is the answer of a recipe.
type Verdict struct {
	Recipe     string     `json:"recipe"`
	Outcome    Outcome    `json:"outcome"`
	Confidence Confidence `json:"confidence"`
	Text       string     `json:"text"` // a sentence
	Advice     string     `json:"advice,omitempty"`
	Evidence   []string   `json:"evidence"`
	// Findings are the changes that traces found.
	Findings []present.Finding `json:"findings"`
	// Located are the same, to be drawn.
	Located []compare.Finding `json:"-"`
}

// Recipe is a question.
type Recipe struct {
	Name, Question string
	run            func(ctx context.Context, s *Session) (*Verdict, error)
}

// All returns every recipe, in the order in which a summary shows them.
func All() []Recipe {
	return []Recipe{
		{"mptcp", "Does Multipath TCP work: first subflow, joins and data?", mptcp},
		{"in-band", "Does dcol's in-band option get through?", inBand},
		{"options", "Which TCP options survive in SYNs, SYN+ACKs and data?", options},
		{"proxy", "Does something answer in the server's place?", proxy},
		{"nat", "Are addresses and ports translated?", nat},
		{"sequence", "Are sequence numbers changed, and those in SACK blocks with them?", sequence},
		{"mss", "Is the maximum segment size changed, or added?", mss},
		{"segments", "Are segments split or joined?", segments},
		{"payload", "Is data changed?", payload},
		{"ecn", "Does explicit congestion notification get through?", ecn},
		{"tfo", "Does TCP Fast Open get through?", tfo},
		{"udp", "Does UDP get to the port?", udp},
	}
}

// Names returns the names of all recipes.
func Names() (names []string) {
	for _, r := range All() {
		names = append(names, r.Name)
	}
	return names
}

// Run runs a recipe.
func (r Recipe) Run(ctx context.Context, s *Session) (*Verdict, error) {
	v, err := r.run(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("recipe %s: %w", r.Name, err)
	}
	v.Recipe = r.Name
	return v, nil
}

// see adds a sentence to the evidence.
func (v *Verdict) see(format string, args ...any) {
	v.Evidence = append(v.Evidence, fmt.Sprintf(format, args...))
}

// found adds a trace's findings, and returns those of some fields, or all without any.
func (v *Verdict) found(p *trace.Path, fields ...compare.Field) (matching []compare.Finding) {
	for _, f := range p.Findings {
		ofThese := len(fields) == 0
		for _, field := range fields {
			ofThese = ofThese || f.Field == field
		}
		if !ofThese {
			continue
		}
		matching = append(matching, f)
		v.Findings, v.Located = append(v.Findings, present.FindingJSON(f)), append(v.Located, f)
		v.see("%s %s.", present.What(f), present.Where(f))
	}
	return matching
}

func verdict(o Outcome, c Confidence, format string, args ...any) *Verdict {
	return &Verdict{Outcome: o, Confidence: c, Text: fmt.Sprintf(format, args...), Evidence: []string{}, Findings: []present.Finding{}}
}

// conclude sets the verdict.
func (v *Verdict) conclude(o Outcome, c Confidence, format string, args ...any) *Verdict {
	v.Outcome, v.Confidence, v.Text = o, c, fmt.Sprintf(format, args...)
	return v
}

// advise returns advice on the verdict.
func (v *Verdict) advise(format string, args ...any) *Verdict {
	v.Advice = fmt.Sprintf(format, args...)
	return v
}

func newVerdict() *Verdict { return verdict(Unknown, Open, "") }

// coverage describes which hops of a trace quote whole packets.
func coverage(p *trace.Path) string {
	full := p.FullQuotes()
	if len(full) == 0 {
		return "no router quotes whole packets"
	}
	return fmt.Sprintf("%d of %d hops quote whole packets, the last of them at hop %d", len(full), len(p.Hops), full[len(full)-1])
}

// segment makes a packet of the session, sealed.
func (s *Session) segment(port uint16, h packet.TCP, payload []byte) (*packet.Packet, error) {
	if h.SrcPort == 0 {
		h.SrcPort = s.freshPort()
	}
	if h.Window == 0 {
		h.Window = 5840
	}
	p := packet.Segment(netip.AddrPortFrom(s.Source, h.SrcPort), netip.AddrPortFrom(s.Destination, port), h, payload)
	if p.V4 != nil {
		p.V4.ID = uint16(s.Random.IntN(0xf000) + 1)
	}
	if err := p.Seal(); err != nil {
		return nil, err
	}
	return p, nil
}

func (s *Session) freshPort() uint16 { return uint16(33000 + s.Random.IntN(27000)) }

func (s *Session) wait() time.Duration {
	if s.Wait == 0 {
		return 2 * time.Second
	}
	return s.Wait
}

// syn traces with a SYN.
func (s *Session) syn(ctx context.Context, port uint16, options ...packet.Option) (*trace.Path, error) {
	return s.synWith(ctx, port, packet.TCP{Flags: packet.SYN, Options: options}, nil)
}

// synWith traces with a SYN of a given header. change changes the packet before it is sealed.
func (s *Session) synWith(ctx context.Context, port uint16, h packet.TCP, change func(*packet.Packet)) (*trace.Path, error) {
	h.Seq = s.Random.Uint32()
	p, err := s.segment(port, h, nil)
	if err != nil {
		return nil, err
	}
	if change != nil {
		change(p)
		if err := p.Seal(); err != nil {
			return nil, err
		}
	}
	if err := s.Hold(p.TCP.SrcPort, port); err != nil {
		return nil, err
	}
	return s.trace(ctx, p)
}

// trace traces with a packet. Hops that were silent in the first trace are not waited for again and again.
func (s *Session) trace(ctx context.Context, p *packet.Packet) (*trace.Path, error) {
	path, err := trace.Run(ctx, s.Net, p, trace.Options{MaxHops: s.MaxHops, Silent: s.silent})
	if err == nil && s.first == nil {
		s.first, s.silent = path, path.Silent()
	}
	return path, err
}

// First returns the session's first trace, nil if there was none.
func (s *Session) First() *trace.Path { return s.first }

const synack = packet.SYN | packet.ACK

// accepted returns the SYN+ACK of a trace, if the destination sent one.
func accepted(p *trace.Path) (*packet.TCP, bool) {
	if p.Answer == nil || p.Answer.Packet.TCP == nil || !p.Answer.Packet.TCP.Flags.Has(synack) {
		return nil, false
	}
	return p.Answer.Packet.TCP, true
}

// answers describes how the destination answered, for evidence.
func answers(p *trace.Path) string {
	switch {
	case p.Answer == nil:
		return "nothing"
	case p.Answer.Packet.TCP == nil:
		return "no TCP"
	case p.Answer.Packet.TCP.Flags.Has(synack):
		return "SYN+ACK"
	case p.Answer.Packet.TCP.Flags.Has(packet.RST):
		return "a reset"
	}
	return "no SYN+ACK"
}

// errNoConnection means that the server did not accept a connection.
var errNoConnection = errors.New("the server accepts no connection")
