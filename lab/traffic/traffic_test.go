package traffic

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ms(values ...int) []time.Duration {
	out := make([]time.Duration, len(values))
	for i, v := range values {
		out[i] = time.Duration(v) * time.Millisecond
	}
	return out
}

// A stall of 100 ms delays all that was due in it: each counts from when it was due.
func TestAfter(t *testing.T) {
	r := Report{Size: 1250, Interval: 20 * time.Millisecond, Done: ms(5, 25, 145, 145, 146, 146, 146, 147)}
	for _, test := range []struct {
		skip      int
		latencies []time.Duration
		stall     int
		seconds   float64
	}{
		{0, ms(5, 5, 105, 85, 66, 46, 26, 7), 105, 0.147},
		{15, ms(5, 105, 85, 66, 46, 26, 7), 105, 0.127},
		{20, ms(5, 105, 85, 66, 46, 26, 7), 105, 0.127},
		{61, ms(66, 46, 26, 7), 66, 0.067},
	} {
		m, err := r.After(time.Duration(test.skip) * time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(m.Latencies, test.latencies) || m.Bytes != int64(1250*len(test.latencies)) {
			t.Errorf("after %d ms: %v, %d bytes; want %v", test.skip, m.Latencies, m.Bytes, test.latencies)
		}
		if m.Stall != ms(test.stall)[0] || m.Seconds != test.seconds {
			t.Errorf("after %d ms: stall %v, %v s; want %d ms, %v s", test.skip, m.Stall, m.Seconds, test.stall, test.seconds)
		}
	}
	for _, bad := range []struct {
		report Report
		skip   time.Duration
		want   string
	}{
		{r, time.Second, "nothing was due after the skip"},
		{Report{}, 0, "no interval"},
		{Report{Interval: 1, Done: []time.Duration{-5}}, 0, "the clocks"},
	} {
		if _, err := bad.report.After(bad.skip); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%+v: error %v, want %q", bad.report, err, bad.want)
		}
	}
}

func TestPlanOnTheWire(t *testing.T) {
	for _, kind := range Kinds() {
		p := Plan{kind, 1250, 500, 20 * time.Millisecond}
		var b bytes.Buffer
		if err := p.write(&b); err != nil {
			t.Fatal(err)
		}
		if got, err := readPlan(&b); got != p || err != nil {
			t.Errorf("%+v became %+v, %v", p, got, err)
		}
	}
	for want, p := range map[string]Plan{
		"no kind of traffic": {"sideways", 1, 1, 1}, "a size of 0": {Upload, 0, 1, 1}, "a count of 0": {Upload, 1, 0, 1},
		"an interval of 0s": {Upload, 1, 1, 0}, "2 times an interval of 1h0m0s": {Upload, 1, 2, time.Hour},
	} {
		if _, err := (&Client{Plan: p}).measure(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", p, err, want)
		}
	}
}

// Whatever comes in, a plan that is taken can be carried out.
func FuzzReadPlan(f *testing.F) {
	var b bytes.Buffer
	if err := (Plan{Requests, 1, 1, 1}).write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte("GET / HTTP/1.1\r\nHost: server\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := readPlan(bytes.NewReader(data)); err == nil && p.check() != nil {
			t.Errorf("took %+v: %v", p, p.check())
		}
	})
}

// startServer runs a server on a free port of the loopback.
func startServer(t *testing.T, said *bytes.Buffer) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- serve(ctx, l, slog.New(slog.NewTextHandler(said, nil))) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// Each kind over the loopback: everything arrives, in order and never before it
// was due.
func TestTraffic(t *testing.T) {
	var said bytes.Buffer
	at := startServer(t, &said)
	for _, kind := range Kinds() {
		c := Client{Plan: Plan{kind, 100_000, 20, 5 * time.Millisecond}, At: at, From: netip.MustParseAddr("127.0.0.2")}
		r, err := c.measure(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if len(r.Done) != 20 || !slices.IsSorted(r.Done) || r.Size != 100_000 {
			t.Errorf("%s: %+v", kind, r)
		}
		for i, done := range r.Done {
			if done < time.Duration(i)*5*time.Millisecond {
				t.Errorf("%s: number %d was there after %v", kind, i+1, done)
			}
		}
	}
}

// A client that is told to end ends, and so does its server.
func TestTrafficIsCancelled(t *testing.T) {
	var said bytes.Buffer
	at := startServer(t, &said)
	for _, kind := range Kinds() {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		c := Client{Plan: Plan{kind, 1000, 3, 10 * time.Minute}, At: at}
		if _, err := c.measure(ctx); err == nil {
			t.Errorf("%s came to its end", kind)
		}
		cancel()
	}
}

// A server that goes away in the middle is an error that says how far it came.
func TestServerGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = readPlan(conn)
		conn.Write(make([]byte, 1500))
		conn.Close()
	}()
	c := Client{Plan: Plan{Requests, 1000, 3, time.Millisecond}, At: l.Addr().(*net.TCPAddr).AddrPort()}
	if _, err := c.measure(t.Context()); err == nil || !strings.Contains(err.Error(), "request") {
		t.Errorf("error %v", err)
	}
}

// A client is started with its configuration as JSON.
func TestClientIsJSON(t *testing.T) {
	want := Client{Plan: Plan{Upload, 1250, 500, 20 * time.Millisecond}, At: netip.MustParseAddrPort("10.0.0.1:7"), From: netip.MustParseAddr("10.0.0.2")}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Client
	if err := json.Unmarshal(data, &got); err != nil || got != want {
		t.Errorf("%s became %+v, %v", data, got, err)
	}
}
