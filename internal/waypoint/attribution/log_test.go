package attribution

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func entry(i int) Entry {
	return Entry{
		Time: time.Unix(int64(i), 0).UTC(), Event: FlowOpened, Member: "alice", Serial: "0a",
		Client: netip.MustParseAddr("192.0.2.1"), ClientPort: uint16(i),
		Server: netip.MustParseAddrPort("198.51.100.1:443"),
	}
}

func read(t *testing.T, path string) []Entry {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var entries []Entry
	for s := bufio.NewScanner(bytes.NewReader(content)); s.Scan(); {
		var e Entry
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			t.Fatalf("line %q: %v", s.Text(), err)
		}
		if e.Member != "" {
			entries = append(entries, e)
		}
	}
	return entries
}

func TestAppendsAfterRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "log.jsonl")
	for i := range 3 {
		l := Open(path, testWaypoint().author(), DefaultLimits, slog.New(slog.DiscardHandler))
		l.Write(entry(i))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	got := read(t, path)
	if len(got) != 3 || !reflect.DeepEqual(got[2], entry(2)) {
		t.Fatalf("got %+v", got)
	}
}

// The format is read by others: a change here is a change for them.
func TestFormat(t *testing.T) {
	var bytesUp, bytesDown uint64 = 10, 20
	for _, c := range []struct {
		entry Entry
		want  string
	}{
		{
			Entry{Time: time.Unix(0, 0).UTC(), Event: MappingGranted, Member: "alice", Serial: "0a",
				Client: netip.MustParseAddr("192.0.2.1"), Port: 443, Server: netip.MustParseAddrPort("198.51.100.1:443"), LeaseSeconds: 600},
			`{"time":"1970-01-01T00:00:00Z","event":"mapping-granted","member":"alice","serial":"0a",` +
				`"client":"192.0.2.1","port":443,"server":"198.51.100.1:443","lease_s":600}`,
		},
		{
			Entry{Time: time.Unix(60, 0).UTC(), Event: FlowClosed, Member: "alice", Serial: "0a",
				Client: netip.MustParseAddr("2001:db8::1"), ClientPort: 5000, Port: 443,
				Server: netip.MustParseAddrPort("[2001:db8::2]:443"), Egress: netip.MustParseAddrPort("[2001:db8::3]:5000"),
				Opened: time.Unix(0, 0).UTC(), BytesFromClient: &bytesUp, BytesToClient: &bytesDown},
			`{"time":"1970-01-01T00:01:00Z","event":"flow-closed","member":"alice","serial":"0a",` +
				`"client":"2001:db8::1","client_port":5000,"port":443,"server":"[2001:db8::2]:443","egress":"[2001:db8::3]:5000",` +
				`"opened":"1970-01-01T00:00:00Z","bytes_from_client":10,"bytes_to_client":20}`,
		},
	} {
		got, err := json.Marshal(c.entry)
		if err != nil || string(got) != c.want {
			t.Errorf("got  %s, %v\nwant %s", got, err, c.want)
		}
	}
}

func TestRotationKeepsTheNewestWithinBounds(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	limits := Limits{FileBytes: 8000, Files: 3, Queue: 10}
	l := Open(path, testWaypoint().author(), limits, slog.New(slog.DiscardHandler))
	for i := range 200 {
		l.Write(entry(i))
		for l.queued() > 0 { // so that none is lost and batches are small
			time.Sleep(time.Millisecond)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 3 {
		t.Errorf("%d files", len(files))
	}
	last := 200
	for _, name := range []string{"log", "log.1", "log.2"} {
		entries := read(t, filepath.Join(dir, name))
		for i := len(entries) - 1; i >= 0; i-- {
			last--
			if int(entries[i].ClientPort) != last {
				t.Fatalf("%s: entry %d where %d was expected", name, entries[i].ClientPort, last)
			}
		}
		if info, _ := os.Stat(filepath.Join(dir, name)); info.Size() > limits.FileBytes {
			t.Errorf("%s has %d bytes", name, info.Size())
		}
	}
}

func (l *Log) queued() int { return len(l.entries) }

func TestUnwritableLogIsReportedAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "dir")
		if err := os.WriteFile(dir, nil, 0o600); err != nil { // a file where the directory must be
			t.Fatal(err)
		}
		path := filepath.Join(dir, "log")
		l := Open(path, testWaypoint().author(), DefaultLimits, slog.New(slog.DiscardHandler))
		if l.Health().Err == nil {
			t.Error("not reported at the start")
		}
		l.Write(entry(1))
		synctest.Wait()
		if h := l.Health(); !errors.Is(h.Err, unix.ENOTDIR) || h.Lost != 1 {
			t.Errorf("health %+v", h)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * retryAfter)
		l.Write(entry(2))
		synctest.Wait()
		if h := l.Health(); h.Err != nil || h.Lost != 1 {
			t.Errorf("health %+v", h)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if got := read(t, path); len(got) != 1 || !reflect.DeepEqual(got[0], entry(2)) {
			t.Errorf("got %+v", got)
		}
	})
}

// smallDisk is a file system of 16 KiB.
func smallDisk(t *testing.T) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a small tmpfs")
	}
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Skipf("needs a mount of tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestFullDiskLeavesNoHalfLines(t *testing.T) {
	path := filepath.Join(smallDisk(t), "log")
	w := testWaypoint().writer(path, DefaultLimits)
	defer w.close()
	written := 0
	var failure error
	for i := 0; failure == nil && i < 1000; i++ {
		if failure = w.write(slices.Repeat([]Entry{entry(i)}, 7), 0); failure == nil {
			written += 7
		}
	}
	if !errors.Is(failure, unix.ENOSPC) {
		t.Fatalf("got %v, want no space", failure)
	}
	if got := read(t, path); len(got) != written {
		t.Errorf("%d entries, want the %d that were written", len(got), written)
	}
}

// A disk that was full for a while leaves a gap that the log records, and the chain stays valid.
func TestDiskThatWasFull(t *testing.T) {
	dir := smallDisk(t)
	synctest.Test(t, func(t *testing.T) {
		c := newTestCollective()
		path := filepath.Join(dir, "log")
		l := Open(path, c.member("bob", "0b").author(), DefaultLimits, discard())
		s := c.member("alice", "0a").session("bob", time.Now())
		written := 0
		for l.Health().Err == nil {
			l.Write(flow(s, 1))
			written++
			synctest.Wait()
		}
		l.Write(flow(s, 2)) // at once, so that it is not tried
		written++
		synctest.Wait()
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=64k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * retryAfter)
		l.Write(flow(s, 3))
		written++
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		r := c.verifyPath(t, path)
		if !r.Complete() || !r.Closed || r.Flows != written-2 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "2 entries were lost here") {
			t.Errorf("%d written, %d there: faults %+v, notes %v", written, r.Flows, r.Faults, r.Notes)
		}
	})
}

func TestFullQueueDoesNotBlock(t *testing.T) {
	l := &Log{entries: make(chan Entry, 1)} // never read
	l.Write(entry(1))
	l.Write(entry(2))
	if h := l.Health(); h.Lost != 1 {
		t.Errorf("health %+v", h)
	}
}

func TestOpenFailureNamesTheFix(t *testing.T) {
	w := testWaypoint().writer("/proc/nowhere/log", DefaultLimits)
	err := w.open()
	if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if !strings.Contains(err.Error(), "[waypoint] log") {
		t.Error(err)
	}
}

func TestRefusalsAreCountedNotRepeated(t *testing.T) {
	r := NewRefusals()
	now := time.Unix(0, 0)
	server := netip.MustParseAddrPort("10.0.0.1:443")
	write := func(member, code string) (Entry, bool) {
		return r.Entry(now, member, "0a", code, "private", netip.MustParseAddr("192.0.2.1"), server)
	}
	if _, ok := write("alice", "destination-forbidden"); !ok {
		t.Error("the first is written")
	}
	for range 10 {
		if _, ok := write("alice", "destination-forbidden"); ok {
			t.Error("an equal one is written")
		}
	}
	if _, ok := write("alice", "quota-mappings"); !ok {
		t.Error("another code is written")
	}
	if _, ok := write("bob", "destination-forbidden"); !ok {
		t.Error("another member's is written")
	}
	now = now.Add(refusalInterval)
	e, ok := write("alice", "destination-forbidden")
	if !ok || e.Repeated != 10 || e.Refusal != "destination-forbidden" || e.Server != server {
		t.Errorf("got %+v, %v", e, ok)
	}
}
