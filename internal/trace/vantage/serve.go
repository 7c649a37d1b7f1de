package vantage

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/printable"
	"github.com/detour-collective/dcol/internal/trace/campaign"
	"github.com/detour-collective/dcol/internal/trace/probe"
)

// Stream is the stream between the two members.
type Stream interface {
	io.Reader
	io.Writer
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

const (
	// requestLimit is the time in which a request must have arrived.
	requestLimit = 30 * time.Second
	// resultLimit is the time in which the asking member must read a result.
	resultLimit = 30 * time.Second
	// parallel is the number of destinations at a time.
	parallel = 20
)

// Server traces for other members.
type Server struct {
	Terms  func() Terms // the terms in effect
	Ledger *Ledger
	// Refusals reads who asked not to be probed.
	Refusals func() (campaign.Refusals, error)
	Open     func(destination netip.Addr) (campaign.Network, error)
	Log      *slog.Logger
}

// Serve answers one request of a member, and traces until it is done or ctx ends.
func (s *Server) Serve(ctx context.Context, member string, stream Stream) {
	log := s.Log.With("member", member)
	taken, err := s.serve(ctx, member, stream)
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		log.Warn("a member's request to trace was refused", "why", printable.Text(refused.why.Error()))
	case err != nil:
		log.Info("tracing for a member ended early", "destinations", taken, "err", err)
	default:
		log.Info("traced for a member", "destinations", taken)
	}
}

// refusal is a request that was refused.
type refusal struct{ why error }

func (r *refusal) Error() string { return r.why.Error() }

func (s *Server) serve(ctx context.Context, member string, stream Stream) (taken int, err error) {
	refuse := func(why error) error {
		deadline := stream.SetWriteDeadline(time.Now().Add(resultLimit))
		return errors.Join(&refusal{why}, deadline, writeLine(stream, Answer{Schema: Schema, Refused: why.Error()}))
	}
	if err := stream.SetReadDeadline(time.Now().Add(requestLimit)); err != nil {
		return 0, err
	}
	line, err := readLine(bufio.NewReader(stream), maxRequest)
	if err != nil {
		return 0, refuse(fmt.Errorf("read the request: %w", err))
	}
	var r Request
	if err := json.Unmarshal(line, &r); err != nil {
		return 0, refuse(fmt.Errorf("the request is malformed: %w", err))
	}
	parsed, err := r.check(member)
	if err != nil {
		return 0, refuse(err)
	}
	refusals, err := s.Refusals()
	if err != nil { // no probe may be sent without the list
		s.Log.Error("the list of refusals cannot be read, so nothing is traced for others", "err", err)
		return 0, refuse(errors.New("its list of refusals cannot be read"))
	}
	terms := s.Terms()
	taken, err = s.Ledger.admit(terms, member, len(r.Destinations), time.Now())
	if err != nil {
		return 0, refuse(err)
	}
	defer s.Ledger.done()
	r.Destinations, r.Rate = r.Destinations[:taken], min(r.Rate, terms.Rate)
	s.Log.Info("tracing for a member", "member", member, "destinations", taken, "first", r.Destinations[0], "rate", r.Rate, "contact", r.Contact)
	return taken, s.run(ctx, r, terms, refusals, parsed, stream)
}

// run runs the campaign, and sends its results.
func (s *Server) run(ctx context.Context, r Request, terms Terms, refusals campaign.Refusals, parsed probe.Probe, stream Stream) error {
	send := func(value any) error {
		return errors.Join(stream.SetWriteDeadline(time.Now().Add(resultLimit)), writeLine(stream, value))
	}
	if err := send(Answer{Schema: Schema, Taken: len(r.Destinations), Rate: r.Rate}); err != nil {
		return err
	}
	c := campaign.Campaign{
		Refusals: refusals, Probe: parsed, Parallel: parallel, Rate: r.Rate, MaxHops: r.Hops, Open: s.Open,
		Resolve: func(_ context.Context, name string) (netip.Addr, error) {
			if !terms.open(time.Now()) {
				return netip.Addr{}, errors.New("the vantage point's hours are over")
			}
			return netip.ParseAddr(name)
		},
		Permit: terms.Permit,
		Done:   func(result *campaign.Record) error { return send(result) },
	}
	for _, d := range r.Destinations {
		c.Names = append(c.Names, d.String())
	}
	if err := c.Run(ctx); err != nil {
		return err
	}
	_, err := stream.Write([]byte("\n"))
	return err
}
