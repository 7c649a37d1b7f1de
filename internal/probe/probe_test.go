package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The voice assistant's shape is the one in section 4.4.2 of the thesis.
func TestVoiceIsTheThesis(t *testing.T) {
	for _, shape := range []Shape{Voice, VoiceQuiet} {
		rounds := shape.script(1)
		if len(rounds) != 9 {
			t.Fatalf("%s: %d bursts", shape, len(rounds))
		}
		for i, r := range rounds {
			if len(r.request) != 10 || slices.Min(r.request) < 50 || slices.Max(r.request) > 500 {
				t.Errorf("%s: burst %d is %v", shape, i, r.request)
			}
			if r.after != time.Duration(i)*300*time.Millisecond {
				t.Errorf("%s: burst %d after %v", shape, i, r.after)
			}
			if last := i == 8; last != (r.reply == 750) || !last && (r.reply > 0) != (shape == Voice) {
				t.Errorf("%s: burst %d is answered by %d bytes", shape, i, r.reply)
			}
		}
	}
}

// Both ends compute the same sizes from a seed, and other sizes from other seeds.
func TestScriptDependsOnSeed(t *testing.T) {
	for _, shape := range Shapes() {
		if !reflect.DeepEqual(shape.script(7), shape.script(7)) {
			t.Errorf("%s: one seed gives two scripts", shape)
		}
	}
	if reflect.DeepEqual(Voice.script(7), Voice.script(8)) {
		t.Error("two seeds give the same voice")
	}
}

func FuzzReadHello(f *testing.F) {
	var b bytes.Buffer
	if err := writeHello(&b, 3, 77); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte("GET / HTTP/1.1\r\nHost: server\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if shape, _, err := readHello(bytes.NewReader(data)); err == nil && !slices.Contains(Shapes(), shape) {
			t.Errorf("took shape %q", shape)
		}
	})
}

// serve runs a server on a free port of the loopback.
func serve(t *testing.T) (address string, stop func()) {
	t.Helper()
	l, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l)
}

func serveOn(t *testing.T, l net.Listener) (address string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	s := Server{Log: slog.New(slog.DiscardHandler)}
	go func() { ended <- s.Serve(ctx, l) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	return l.Addr().String(), stop
}

func TestExchanges(t *testing.T) {
	at, stop := serve(t)
	t.Cleanup(stop)
	for _, test := range []struct {
		shape  Shape
		way    Way
		values int
	}{{Voice, MPTCP, 1}, {VoiceQuiet, TCP, 1}, {Requests, MPTCP, 20}, {Bulk, TCP, 1}, {Bulk, MPTCP, 1}, {Page, TCP, 1}, {Page, MPTCP, 1}} {
		t.Run(string(test.shape)+" "+string(test.way), func(t *testing.T) {
			t.Parallel()
			c := Client{Server: at, Shape: test.shape}
			r := c.Exchange(t.Context(), test.way)
			if r.Error != "" || len(r.Values) != test.values || slices.Min(r.Values) <= 0 || !r.valid() {
				t.Errorf("%+v", r)
			}
			if len(r.Replies) != test.values {
				t.Errorf("%d paths of %d replies", len(r.Replies), test.values)
			}
			if !slices.Equal(slices.Compact(r.Replies), []string{Direct}) {
				t.Errorf("replies came by %v", r.Replies)
			}
		})
	}
}

// An exchange over MPTCP with a server that has only TCP reports that, and its replies come by the direct path.
func TestFallsBack(t *testing.T) {
	var plain net.ListenConfig
	plain.SetMultipathTCP(false)
	l, err := plain.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at, stop := serveOn(t, l)
	t.Cleanup(stop)
	c := Client{Server: at, Shape: Bulk}
	if r := c.Exchange(t.Context(), MPTCP); r.Error != "" || !r.FellBack || !slices.Equal(r.Replies, []string{Direct}) || len(r.Bytes) > 0 {
		t.Errorf("%+v", r)
	}
	if r := c.Exchange(t.Context(), TCP); r.Error != "" || r.FellBack {
		t.Errorf("over TCP: %+v", r)
	}
}

func TestLateness(t *testing.T) {
	ms := time.Millisecond
	got := lateness([]time.Duration{30 * ms, 45 * ms, 75 * ms, 95 * ms}, 20*ms)
	if want := []float64{5, 0, 10, 10}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// lone answers one connection with a function.
func lone(t *testing.T, answer func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			answer(conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	return l.Addr().String()
}

func TestReasons(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, test := range []struct{ name, server, want string }{
		{"refused", closed.Addr().String(), "refuses connections: is `dcol probe serve` running there?"},
		{"another program", lone(t, func(c net.Conn) { _, _ = c.Write([]byte("220 mail.example ESMTP here\r\n")) }), "no dcol probe server"},
		{"ends at once", lone(t, func(net.Conn) {}), "127.0.0.1"},
		{"vanishes in the middle of a reply", lone(t, func(c net.Conn) {
			shape, seed, _ := readHello(c)
			_ = writeHello(c, slices.Index(Shapes(), shape), seed)
			_ = discard(c, requestSize)
			_, _ = c.Write(make([]byte, 100))
		}), "ended the connection too early: 100 of 5000000 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := Client{Server: test.server, Shape: Bulk}
			if r := c.Exchange(t.Context(), TCP); !strings.Contains(r.Error, test.want) {
				t.Errorf("%q, want %q", r.Error, test.want)
			}
		})
	}
}

// If the server disappears, the run ends, and the results until then are in the file.
func TestServerVanishes(t *testing.T) {
	at, stop := serve(t)
	path := filepath.Join(t.TempDir(), "results.jsonl")
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	made := 0
	c := Campaign{Client: Client{Server: at, Shape: Page}, Ways: []Way{TCP, MPTCP}, Rounds: 10, Done: func(r Record) error {
		if made++; made == 3 {
			stop()
		}
		return f.Append(r)
	}}
	err = c.Run(t.Context())
	if gone, ok := errors.AsType[*GoneError](err); !ok || gone.Made != 3 || gone.Of != 20 {
		t.Fatalf("error %v", err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	records, damaged, err := Read(file)
	if err != nil || damaged != 0 || len(records) != 6 || records[2].Error != "" || records[3].Error == "" {
		t.Errorf("%d records, %d damaged, %v", len(records), damaged, err)
	}
}

func TestInterrupted(t *testing.T) {
	at, stop := serve(t)
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	c := Campaign{Client: Client{Server: at, Shape: Voice}, Ways: []Way{TCP}, Rounds: 2, Done: func(Record) error { t.Error("a result of nothing"); return nil }}
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := c.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// A line that is incomplete after a power cut counts as damaged, and other lines are read.
func TestCutLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	good := Record{Schema: Schema, Time: time.Unix(1000, 0).UTC(), Shape: Bulk, Way: TCP}
	if err := os.WriteFile(path, []byte(`{"schema":"dcol.probe/1","time":"2026-`), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 2 {
		if err := f.Append(good); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	records, damaged, err := Read(bytes.NewReader(data))
	if err != nil || damaged != 1 || len(records) != 2 {
		t.Errorf("%d records, %d damaged, %v", len(records), damaged, err)
	}
}

// TestMonths reads the results of half a year, which logrotate has split into one file a month while runs continued.
// The size is as documented, and a change of files is not a gap.
func TestMonths(t *testing.T) {
	const months, perMonth = 6, 30 * 24 * 4 * 4 // every quarter of an hour two rounds by two ways
	folder := t.TempDir()
	path := filepath.Join(folder, "office.jsonl")
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for month := range months {
		f, err := OpenFile(path) // as each run does
		if err != nil {
			t.Fatal(err)
		}
		var lines bytes.Buffer
		for i := range perMonth {
			if i%4 == 0 {
				at = at.Add(15 * time.Minute)
			}
			r := Record{Schema: Schema, Time: at.Add(time.Duration(i%4) * time.Second), Server: "203.0.113.5:45680", Shape: Voice, Way: []Way{TCP, MPTCP}[i%2],
				Values: []float64{float64(40+i%9) + 0.123}, Connect: 20.456, Duration: 2941.789, Replies: []string{Direct}, Bytes: map[string]uint64{Direct: 750}}
			if i > 0 && i < perMonth-1 { // all at once, because Append waits for the disk
				line, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				lines.Write(append(line, '\n'))
				continue
			}
			if err := appendAll(path, &lines); err != nil {
				t.Fatal(err)
			}
			if err := f.Append(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(f.Close(), os.Rename(path, fmt.Sprintf("%s.%d", path, months-month))); err != nil {
			t.Fatal(err)
		}
	}
	names, err := filepath.Glob(path + ".*")
	if err != nil || len(names) != months {
		t.Fatalf("%q, %v", names, err)
	}
	var all []Record
	for _, name := range names { // newest first
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if size := float64(len(data)) / 1e6; size > 4 {
			t.Errorf("a month has %.1f MB, more than documented", size)
		}
		records, damaged, err := Read(bytes.NewReader(data))
		if err != nil || damaged > 0 || len(records) != perMonth {
			t.Fatalf("%d records, %d damaged, %v", len(records), damaged, err)
		}
		all = append(all, records...)
	}
	slices.SortStableFunc(all, func(a, b Record) int { return a.Time.Compare(b.Time) })
	if gaps := Gaps(all, 0); len(gaps) != 0 {
		t.Errorf("%d gaps, the first %v", len(gaps), gaps[0])
	}
	day := slices.DeleteFunc(slices.Clone(all), func(r Record) bool { return r.Time.YearDay() == 60 })
	if gaps := Gaps(day, 0); len(gaps) != 1 || gaps[0].To.Sub(gaps[0].From) < 24*time.Hour {
		t.Errorf("without a day: %v", gaps)
	}
}

// appendAll appends the buffer's lines to a file, and empties the buffer.
func appendAll(path string, lines *bytes.Buffer) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = lines.WriteTo(f)
	return errors.Join(err, f.Close())
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"schema":"dcol.probe/1","time":"2026-11-23T17:00:00Z","shape":"bulk","way":"tcp","values":[5]}` + "\nrubbish\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		records, _, err := Read(bytes.NewReader(data))
		if err == nil && slices.ContainsFunc(records, func(r Record) bool { return !r.valid() }) {
			t.Error("took a record that is none")
		}
	})
}

func TestGaps(t *testing.T) {
	at := func(minutes ...int) (records []Record) {
		for _, m := range minutes {
			records = append(records, Record{Time: time.Unix(int64(m)*60, 0)})
		}
		return records
	}
	for _, test := range []struct {
		name    string
		records []Record
		limit   time.Duration
		gaps    int
	}{
		{"nothing", nil, 0, 0},
		{"one", at(1), 0, 0},
		{"every hour, and a day without", at(0, 60, 120, 180, 1620, 1680), 0, 1},
		{"as often as usual", at(0, 60, 121, 180), 0, 0},
		{"with a limit", at(0, 60, 121, 180), time.Hour, 1},
	} {
		if gaps := Gaps(test.records, test.limit); len(gaps) != test.gaps {
			t.Errorf("%s: %v", test.name, gaps)
		}
	}
}
