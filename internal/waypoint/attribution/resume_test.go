package attribution

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// verifyPath verifies all files of a log, as they lie there.
func (c *testCollective) verifyPath(t testing.TB, path string) *Report {
	t.Helper()
	files, err := FilesOf(path)
	if err != nil {
		t.Fatal(err)
	}
	return c.verify(t, files...)
}

// After a crash or a power cut the next agent continues the log, and the chain stays valid.
func TestGoesOnAfterCrash(t *testing.T) {
	c := newTestCollective()
	for name, test := range map[string]struct {
		crash   func(content []byte) []byte
		unclean bool
	}{
		"clean":               {func(b []byte) []byte { return b }, false},
		"before the end":      {func(b []byte) []byte { return b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1] }, true},
		"in the last line":    {func(b []byte) []byte { return b[:len(b)-20] }, true},
		"without the newline": {func(b []byte) []byte { return b[:len(b)-1] }, true},
		"zeros":               {func(b []byte) []byte { return append(b[:len(b)-200], make([]byte, 1<<20)...) }, true},
		"zeros and newlines":  {func(b []byte) []byte { return append(b[:len(b)-20], "\x00\x00\n\x00\n\n"...) }, true},
		"in the first line":   {func(b []byte) []byte { return b[:50] }, false},
		"before the first":    {func([]byte) []byte { return nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			content := test.crash([]byte(c.story(t, path, 6)))
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			text := c.story(t, path, 4)
			r := c.verifyPath(t, path)
			if !r.Complete() || !r.Closed {
				t.Errorf("faults %+v, unsigned %d, half %q", r.Faults, r.Unsigned, r.Half)
			}
			if noted := strings.Contains(text, `"unclean":true`); noted != test.unclean {
				t.Errorf("the crash is noted: %v, want %v:\n%s", noted, test.unclean, text)
			}
			if whole := content[:bytes.LastIndexByte(content, '\n')+1]; !bytes.Contains(whole, []byte{0}) && !strings.HasPrefix(text, string(whole)) {
				t.Error("whole lines are gone")
			}
		})
	}
}

// A file that is not this waypoint's log is set aside, not written to.
func TestForeignFilesAreSetAside(t *testing.T) {
	c := newTestCollective()
	carol := filepath.Join(t.TempDir(), "log")
	l := Open(carol, c.member("carol", "0c").author(), DefaultLimits, discard())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ofCarol, err := os.ReadFile(carol)
	if err != nil {
		t.Fatal(err)
	}
	for name, foreign := range map[string]string{
		"another waypoint's": string(ofCarol),
		"of an older dcol":   `{"time":"1970-01-01T00:00:00Z","event":"flow-opened","member":"alice","serial":"0a"}` + "\n",
		"something else":     "#!/bin/sh\nexit\n",
		"something long":     strings.Repeat("x", 3*maxLine),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(foreign), 0o600); err != nil {
				t.Fatal(err)
			}
			if r := c.verifyText(t, c.story(t, path, 3)); !r.Complete() || r.Waypoint != "bob" {
				t.Errorf("the new log: %+v", r)
			}
			if aside, err := os.ReadFile(path + ".1"); err != nil || string(aside) != foreign {
				t.Errorf("set aside: %.100q, %v", aside, err)
			}
		})
	}
}

// Each file of a log can be checked by itself, and all of them together, in whatever order they come.
func TestFilesOfALog(t *testing.T) {
	c := newTestCollective()
	path := filepath.Join(t.TempDir(), "log")
	limits := Limits{FileBytes: 12000, Files: 4, Queue: 1 << 10}
	w := c.member("bob", "0b").writer(path, limits)
	s := c.member("alice", "0a").session("bob", time.Now())
	for i := range 100 {
		if err := w.write([]Entry{flow(s, uint16(i+1))}, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.sign(logClosed, 0); err != nil {
		t.Fatal(err)
	}
	w.close()
	files, err := FilesOf(path)
	if err != nil || len(files) != 4 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for i, f := range files {
		r := c.verify(t, f)
		if !r.Complete() || r.Closed != (i == 0) || r.Sessions != 1 {
			t.Errorf("%s by itself: faults %+v, unsigned %d, sessions %d", f.Name, r.Faults, r.Unsigned, r.Sessions)
		}
	}
	for _, order := range [][]File{files, {files[2], files[0], files[3], files[1]}} {
		r := c.verify(t, order...)
		if !r.Complete() || !r.Closed || len(r.Proven) != 1 || r.Sessions != 1 {
			t.Errorf("together: faults %+v, proven %v", r.Faults, r.Proven)
		}
	}
	r := c.verify(t, files[0], files[1], files[3])
	if !slices.Equal(faultsOf(r), []FaultKind{Missing}) || !strings.HasSuffix(r.Faults[0].Place, "log.1:1") {
		t.Errorf("without a file in the middle: %+v", r.Faults)
	}
	other := filepath.Join(t.TempDir(), "other")
	c.story(t, other, 3)
	if r := c.verify(t, append(files, OpenFile(other))...); !r.Clean() || !strings.Contains(words(t, r), "another log of bob begins") {
		t.Errorf("with another log of the same waypoint:\n%s", words(t, r))
	}
	l := Open(other+"s", c.member("carol", "0c").author(), DefaultLimits, discard())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r = c.verify(t, append(files, OpenFile(other+"s"))...)
	if !slices.Contains(faultsOf(r), Foreign) {
		t.Errorf("with another waypoint's log: %+v", r.Faults)
	}
	if said := words(t, r); !strings.Contains(said, "are as bob wrote them, lines 0 to 1 are as carol wrote them, signed") {
		t.Errorf("who wrote what is not said:\n%s", said)
	}
}

// The log does not write to a file that somebody removed, moved or emptied: it continues in a new file of its
// name.
func TestFileThatIsTakenAway(t *testing.T) {
	c := newTestCollective()
	for name, test := range map[string]struct {
		take  func(path string) error
		whole bool // no line is gone
	}{
		"removed": {os.Remove, false},
		"emptied": {func(path string) error { return os.Truncate(path, 0) }, false},
		"moved":   {func(path string) error { return os.Rename(path, path+".1") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			w := c.member("bob", "0b").writer(path, DefaultLimits)
			s := c.member("alice", "0a").session("bob", time.Now())
			write := func(port uint16) {
				t.Helper()
				if err := w.write([]Entry{flow(s, port)}, 0); err != nil {
					t.Fatal(err)
				}
			}
			write(1)
			if err := test.take(path); err != nil {
				t.Fatal(err)
			}
			write(2)
			write(3)
			if err := w.sign(logClosed, 0); err != nil {
				t.Fatal(err)
			}
			w.close()
			r := c.verifyPath(t, path)
			if !r.Complete() || !r.Closed || r.Sessions != 1 {
				t.Errorf("faults %+v, unsigned %d", r.Faults, r.Unsigned)
			}
			if whole := r.Flows == 3; whole != test.whole || whole == strings.Contains(words(t, r), "older files are missing") {
				t.Errorf("%d connections:\n%s", r.Flows, words(t, r))
			}
		})
	}
}

// Lost entries are recorded in the log, at their place.
func TestLostEntriesAreNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCollective()
		path := filepath.Join(t.TempDir(), "log")
		l := Open(path, c.member("bob", "0b").author(), DefaultLimits, discard())
		s := c.member("alice", "0a").session("bob", time.Now())
		l.Write(flow(s, 1))
		synctest.Wait()
		l.lose(7)
		l.Write(flow(s, 2))
		synctest.Wait()
		l.Write(flow(s, 3))
		synctest.Wait()
		l.lose(2) // and nothing more is written
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		r := c.verifyPath(t, path)
		if !r.Complete() || len(r.Notes) != 2 || !strings.Contains(r.Notes[0], "7 entries were lost") || !strings.Contains(r.Notes[1], "2 entries were lost") {
			t.Errorf("faults %v, notes %v", r.Faults, r.Notes)
		}
	})
}

// The unsigned tail is a minute old at most, or some thousand lines long.
func TestSignsNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCollective()
		path := filepath.Join(t.TempDir(), "log")
		l := Open(path, c.member("bob", "0b").author(), DefaultLimits, discard())
		s := c.member("alice", "0a").session("bob", time.Now())
		l.Write(flow(s, 1))
		synctest.Wait()
		if r := c.verifyPath(t, path); r.Unsigned != 3 || !r.Clean() || r.Complete() {
			t.Errorf("at first: %+v", r)
		}
		time.Sleep(signEvery + time.Second)
		synctest.Wait()
		if r := c.verifyPath(t, path); r.Unsigned != 0 || !r.Complete() || r.Closed {
			t.Errorf("after a minute: %+v", r)
		}
		before := c.verifyPath(t, path).Lines
		time.Sleep(time.Hour)
		synctest.Wait()
		if now := c.verifyPath(t, path).Lines; now != before {
			t.Errorf("%d lines without news", now-before)
		}
		for i := range signLines + 10 {
			l.Write(flow(s, uint16(i)))
		}
		synctest.Wait()
		if r := c.verifyPath(t, path); r.Unsigned > writeMost || len(r.Proven) != 1 || r.Head.N < signLines {
			t.Errorf("after many lines: unsigned %d, head %v", r.Unsigned, r.Head)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A renewed certificate of the waypoint is shown with the next head.
func TestRenewedCertificate(t *testing.T) {
	c := newTestCollective()
	path := filepath.Join(t.TempDir(), "log")
	var now string // the serial number of its certificate
	author := Author{Collective: "test", Waypoint: "bob", Sign: func(message func([][]byte) []byte) []byte {
		return c.member("bob", now).sign(message)
	}}
	w := &writer{path: path, limits: DefaultLimits, author: &author, shares: newShares(0)}
	s := c.member("alice", "0a").session("bob", time.Now())
	for i, serial := range []string{"0b", "0b", "1b", "2b", "2b"} {
		now = serial
		if err := w.write([]Entry{flow(s, uint16(i+1))}, 0); err != nil {
			t.Fatal(err)
		}
		if err := w.sign(headSigned, 0); err != nil {
			t.Fatal(err)
		}
	}
	w.close()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if r := c.verifyText(t, string(content)); !r.Complete() {
		t.Errorf("%+v", r.Faults)
	}
	if shown := bytes.Count(content, []byte(`"event":"head-signed"`)) - 2; shown != 3 || bytes.Count(content, []byte(`"chain":`)) != 3+1 {
		t.Errorf("certificates in %d lines:\n%s", bytes.Count(content, []byte(`"chain":`)), content)
	}
}

// The cost of a flow: time in the writer's goroutine, and bytes on the disk.
func BenchmarkFlow(b *testing.B) {
	c := newTestCollective()
	path := filepath.Join(b.TempDir(), "log")
	w := c.member("bob", "0b").writer(path, Limits{FileBytes: 1 << 40, Files: 2})
	s := c.member("alice", "0a").session("bob", time.Now())
	var up, down uint64 = 123456, 7654321
	batch := make([]Entry, 0, writeMost)
	for i := range writeMost / 2 {
		opened := flow(s, uint16(i))
		closed := opened
		closed.Event, closed.Opened, closed.BytesFromClient, closed.BytesToClient = FlowClosed, opened.Time, &up, &down
		batch = append(batch, opened, closed)
	}
	b.ReportAllocs()
	flows := 0
	for b.Loop() {
		if err := w.write(batch, 0); err != nil {
			b.Fatal(err)
		}
		flows += writeMost / 2
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(flows), "ns/flow")
	b.ReportMetric(float64(w.size)/float64(flows), "disk-B/flow")
	w.close()
}

// The cost for the caller: it only puts an entry into a queue.
func BenchmarkWrite(b *testing.B) {
	l := &Log{entries: make(chan Entry, 1)}
	e := flow(newTestCollective().member("alice", "0a").session("bob", time.Now()), 1)
	b.ReportAllocs()
	for b.Loop() {
		l.Write(e)
		<-l.entries
	}
}
