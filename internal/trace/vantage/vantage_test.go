package vantage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/trace/campaign"
	"github.com/detour-collective/dcol/internal/units"
)

const contact = "path measurement, noc@example.org"

var (
	public  = netip.MustParseAddr("203.0.113.7")
	other   = netip.MustParseAddr("2001:db8::7")
	private = netip.MustParseAddr("10.0.0.1")
	refused = netip.MustParseAddr("203.0.113.66")
)

func terms() Terms {
	return Terms{Rate: 20, Destinations: 3, Permit: func(a netip.Addr) error {
		if a.IsPrivate() {
			return fmt.Errorf("%v is private", a)
		}
		return nil
	}}
}

// server returns a Server whose network does not work, so that results are errors.
func server(t Terms) *Server {
	return &Server{
		Terms: func() Terms { return t }, Ledger: &Ledger{}, Log: slog.New(slog.DiscardHandler),
		Refusals: func() (campaign.Refusals, error) { return campaign.ReadRefusals(strings.NewReader(refused.String())) },
		Open:     func(netip.Addr) (campaign.Network, error) { return nil, errors.New("the cable is out") },
	}
}

func request(to ...netip.Addr) Request {
	return Request{Schema: Schema, Contact: contact, Port: 80, Hops: 30, Rate: 1e9, Destinations: to}
}

// ask asks a server over a pipe, as alice.
func ask(t *testing.T, s *Server, r Request) (results map[string]*campaign.Record, answer Answer, err error) {
	t.Helper()
	near, far := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer far.Close()
		s.Serve(t.Context(), "alice", far)
	}()
	results = map[string]*campaign.Record{}
	var names []string
	for _, d := range r.Destinations {
		names = append(names, "name of "+d.String())
	}
	answer, err = Ask(near, "bob", r, names, func(r *campaign.Record) error { results[r.Name] = r; return nil })
	near.Close()
	<-served
	return results, answer, err
}

// What is asked for comes back with the name of its vantage point. Private addresses and those of the list of refusals
// are not probed, and a rate that is too high is lowered.
func TestAsk(t *testing.T) {
	results, answer, err := ask(t, server(terms()), request(public, private, refused))
	if err != nil || answer.Rate != 20 || answer.Taken != 3 {
		t.Fatalf("%+v, %v", answer, err)
	}
	for to, want := range map[netip.Addr]string{public: "the cable is out", private: "10.0.0.1 is private", refused: "it asked not to be probed"} {
		r := results["name of "+to.String()]
		if r == nil || r.From != "bob" || r.Error+r.Skipped != want {
			t.Errorf("%v: %+v, want %q", to, r, want)
		}
	}
}

func TestRefusedRequests(t *testing.T) {
	many := request()
	for i := range MaxDestinations + 1 {
		many.Destinations = append(many.Destinations, netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}))
	}
	zero, silent, anonymous := request(public), request(public), request(public)
	zero.Rate, silent.Hops, anonymous.Contact = 0, 0, "somebody at work"
	now := time.Now()
	never := terms() // open in another hour only
	from := (now.Hour()*60 + now.Minute() + 120) % (23 * 60)
	never.Hours = []units.Window{{First: time.Monday, Last: time.Sunday, From: from, To: from + 1}}
	busy := server(terms())
	if _, err := busy.Ledger.admit(terms(), "carol", 1, now); err != nil {
		t.Fatal(err)
	}
	blind := server(terms())
	blind.Refusals = func() (campaign.Refusals, error) { return campaign.Refusals{}, errors.New("line 1: ?") }
	for _, test := range []struct {
		s    *Server
		r    Request
		want string
	}{
		{server(terms()), many, "1 to 10000 destinations, not 10001"}, {server(terms()), request(), "1 to 10000 destinations, not 0"},
		{server(terms()), zero, "the rate must be above zero"}, {server(terms()), silent, "the number of hops"},
		{server(terms()), anonymous, "no mail address and no URL"}, {server(terms()), Request{Schema: "x"}, "not \"x\""},
		{server(terms()), request(netip.Addr{}), "no address of a destination"}, {server(never), request(public), "at these hours"},
		{busy, request(public), "it traces for carol now"}, {blind, request(public), "cannot be read"},
	} {
		results, _, err := ask(t, test.s, test.r)
		var why *RefusedError
		if !errors.As(err, &why) || !strings.Contains(why.Why, test.want) || len(results) > 0 {
			t.Errorf("%+.100v: %v, want %q", test.r, err, test.want)
		}
	}
}

// A member has so many destinations a day, in all its requests together.
func TestDestinationsInADay(t *testing.T) {
	s, noon := server(terms()), time.Date(2026, 11, 23, 12, 0, 0, 0, time.Local)
	for _, want := range []struct {
		at    time.Time
		taken int
	}{{noon, 2}, {noon, 1}, {noon, 0}, {noon.Add(24 * time.Hour), 2}} {
		taken, err := s.Ledger.admit(terms(), "alice", 2, want.at)
		if taken != want.taken || (err == nil) != (taken > 0) {
			t.Errorf("at %v: %d taken, %v; want %d", want.at, taken, err, want.taken)
		}
		if err == nil {
			s.Ledger.done()
		}
	}
}

// A member that lies can only lie about destinations that it was asked about, under its own name.
func TestLies(t *testing.T) {
	good := func(change func(r *campaign.Record)) string {
		r := campaign.Record{Schema: campaign.Schema, Name: public.String(), From: "carol", Error: "none"}
		change(&r)
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	same := good(func(*campaign.Record) {})
	for _, test := range []struct {
		lines []string
		want  string // in the error; "": none
	}{
		{[]string{same, ""}, ""}, {[]string{same, same, ""}, "comes twice"},
		{[]string{good(func(r *campaign.Record) { r.Name = "203.0.113.8" }), ""}, "was not asked for"},
		{[]string{good(func(r *campaign.Record) { r.Name = "example.org" }), ""}, "ParseAddr"},
		{[]string{good(func(r *campaign.Record) { r.Schema = "x" }), ""}, "no record"},
		{[]string{good(func(r *campaign.Record) { r.Error = "" }), ""}, "without a trace"},
		{[]string{`{"schema":"` + campaign.Schema + `","name":"203.0.113.7","trace":{"destination":"192.0.2.1"}}`}, "is one of"},
		{[]string{`{"schema":"` + campaign.Schema + `","name":"203.0.113.7","trace":{"destination":"203.0.113.7","findings":[{"after":1,"by":2000000000}]}}`}, "between hops"},
		{[]string{strings.Repeat("x", maxResult)}, "too long"}, {[]string{same}, "EOF"}, {[]string{"{"}, "EOF"},
	} {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			if _, err := readLineOf(far); err != nil {
				return
			}
			_ = writeLine(far, Answer{Schema: Schema, Taken: 1, Rate: 1})
			for _, line := range test.lines {
				if _, err := far.Write([]byte(line + "\n")); err != nil {
					return // the asking member had enough
				}
			}
		}()
		_, err := Ask(near, "bob", request(public), []string{"a.example"}, func(r *campaign.Record) error {
			if r.From != "bob" || r.Name != "a.example" {
				t.Errorf("a result of %s about %s", r.From, r.Name)
			}
			return nil
		})
		near.Close()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.80q: %v, want %q", test.lines, err, test.want)
		}
	}
}

func readLineOf(c net.Conn) (n int, err error) {
	one := make([]byte, 1)
	for n = 0; err == nil && one[0] != '\n'; n++ {
		_, err = c.Read(one)
	}
	return n, err
}

// A member that goes away ends its campaign, and the next one's can begin.
func TestAskingMemberGoesAway(t *testing.T) {
	s := server(terms())
	near, far := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() { defer close(served); s.Serve(ctx, "alice", far) }()
	if err := writeLine(near, request(public, other)); err != nil {
		t.Fatal(err)
	}
	if _, err := readLineOf(near); err != nil {
		t.Fatal(err)
	}
	cancel()
	near.Close()
	<-served
	if _, err := s.Ledger.admit(terms(), "bob", 1, time.Now()); err != nil {
		t.Error(err)
	}
}

func FuzzServe(f *testing.F) {
	text, err := json.Marshal(request(public, other))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(text, '\n'))
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r Request
		if json.Unmarshal(data, &r) != nil {
			return
		}
		if p, err := r.check("alice"); err == nil && (p == nil || len(r.Destinations) == 0 || r.Port == 0) {
			t.Errorf("took %+v", r)
		}
	})
}

func FuzzParseResult(f *testing.F) {
	f.Add([]byte(`{"schema":"dcol.trace-campaign/1","name":"203.0.113.7","trace":{"destination":"203.0.113.7","hops":[{"distance":1}]}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parseResult(line, "bob", map[netip.Addr]string{public: "a.example"}, time.Now())
		if err == nil && (r.From != "bob" || r.Name != "a.example" || r.Check() != nil) {
			t.Errorf("took %+v", r)
		}
	})
}
