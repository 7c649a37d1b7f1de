package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/api"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func used(at time.Time, received uint64) api.Period {
	return api.Period{Start: at, Observed: 60, Paths: []api.PathUsed{{Kind: "mapped", Waypoint: "bob", Received: received, RTT: 20, Samples: 1}},
		Gained: api.Gained{DetourBytes: received}}
}

func openStore(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func read(t *testing.T, s *Store, step api.HistoryStep) []api.Period {
	t.Helper()
	list, err := s.Read(step, time.Time{}, noon.AddDate(10, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	s := openStore(t, path)
	for i := range 3 * 60 {
		if err := s.Add(used(noon.Add(time.Duration(i)*time.Minute), 10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, path)
	if list := read(t, s, api.StepMinute); len(list) != 180 || list[0].Paths[0].Received != 10 {
		t.Errorf("%d minutes, the first is %+v", len(list), list[0])
	}
	if list := read(t, s, api.StepHour); len(list) != 3 || list[2].Paths[0].Received != 600 || list[2].Paths[0].RTT != 20 {
		t.Errorf("hours are %+v", list)
	}
	if list := read(t, s, api.StepMonth); len(list) != 1 || list[0].Gained.DetourBytes != 1800 {
		t.Errorf("months are %+v", list)
	}
}

// The oldest periods are deleted, however the clock changes, and the file does not grow for ever.
func TestStoreIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	s := openStore(t, path)
	s.db.NoSync = true
	s.minutes.periods, s.hours.periods = 20, 5
	long := api.Period{Observed: 60}
	for i := range 100 {
		addPath(&long, api.PathUsed{Kind: "wireguard", Waypoint: fmt.Sprint(strings.Repeat("w", 60), i), Received: 1 << 60})
	}
	if n := len(long.Paths); n > mostPaths+1 || long.Paths[n-1].Kind != othersKind {
		t.Errorf("a period has %d paths", n)
	}
	var size int64
	for i := range 600 {
		long.Start = noon.Add(time.Duration(i) * time.Minute)
		if err := s.Add(long); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if i == 300 {
			size = info.Size()
		}
		if i > 300 && info.Size() > size {
			t.Fatalf("the file grows from %d to %d bytes", size, info.Size())
		}
	}
	if m, h := len(read(t, s, api.StepMinute)), len(read(t, s, api.StepHour)); m != 20 || h != 5 {
		t.Errorf("%d minutes and %d hours are kept", m, h)
	}
	for _, wrong := range []time.Time{time.Unix(-5, 0), time.Unix(100, 0), noon.AddDate(5, 0, 0), noon.Add(11 * time.Hour)} {
		if err := s.Add(used(wrong, 1)); err != nil {
			t.Errorf("at %v: %v", wrong, err)
		}
	}
	if m := len(read(t, s, api.StepMinute)); m != 20 {
		t.Errorf("after clock steps, %d minutes are kept", m)
	}
}

// With many paths the file keeps its maximum size: the oldest minutes are deleted, and the oldest hours are joined into
// days. The days' totals stay the same.
func TestStoreKeepsToItsSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	s := openStore(t, path)
	s.db.NoSync = true
	s.minutes.bytes, s.hours.bytes = 300<<10, 700<<10
	long := api.Period{Observed: 60}
	for i := range mostPaths {
		long.Paths = append(long.Paths, api.PathUsed{Kind: "wireguard", Waypoint: fmt.Sprint(strings.Repeat("w", 60), i), Received: 1 << 40})
	}
	const days, everyHour = 60, 3
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.Local)
	end := at.AddDate(0, 0, days)
	added := map[string]uint64{} // bytes received on each day
	for ; at.Before(end); at = at.Add(time.Hour / everyHour) {
		long.Start = at
		long.Paths[0].Received++
		added[at.Format(time.DateOnly)] += long.Paths[0].Received
		if err := s.Add(long); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if most := int64(s.minutes.bytes+s.hours.bytes)*5/4 + growth; info.Size() > most {
		t.Errorf("the file has %d bytes, at most %d", info.Size(), most)
	}
	minutes, hours, list := read(t, s, api.StepMinute), read(t, s, api.StepHour), read(t, s, api.StepDay)
	if last := minutes[len(minutes)-1].Start; len(minutes) < 20 || len(minutes) > days*24*everyHour/2 || !last.Equal(long.Start) {
		t.Errorf("%d minutes are kept, up to %v", len(minutes), last)
	}
	if first, last := hours[1].Start.Sub(hours[0].Start), long.Start.Sub(hours[len(hours)-24].Start); first < 23*time.Hour || last > 24*time.Hour {
		t.Errorf("the first hours are %v apart, the last 24 in %v", first, last)
	}
	if len(list) != len(added) {
		t.Errorf("%d days are kept of %d", len(list), len(added))
	}
	for _, day := range list {
		if got, want := day.Paths[0].Received, added[day.Start.Format(time.DateOnly)]; got != want || day.Observed < 23*60*everyHour {
			t.Errorf("%v: %d bytes, not %d", day.Start, got, want)
		}
	}
}

// A file that a power cut or the disk has damaged is set aside, and a new one is created.
func TestDamagedStoreIsSetAside(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "whole.db")
	s := openStore(t, whole)
	s.db.NoSync = true
	for i := range 300 {
		if err := s.Add(used(noon.Add(time.Duration(i)*time.Minute), 10)); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	data, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	zeros := func(from, to int) []byte {
		out := append([]byte{}, data...)
		clear(out[from:to])
		return out
	}
	page := os.Getpagesize()
	for name, damaged := range map[string][]byte{
		"text": []byte("this is no database"), "truncated": data[:3*page], "cut in a page": data[:2*page+100],
		"no header": zeros(0, 2*page), "lost pages": zeros(2*page, len(data)),
	} {
		path := filepath.Join(t.TempDir(), "history.db")
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path)
		d, ok := errors.AsType[*DamagedError](err)
		if !ok {
			t.Errorf("%s: %v", name, err)
			if s != nil {
				s.Close()
			}
			continue
		}
		if aside, err := os.ReadFile(d.Aside); err != nil || len(aside) != len(damaged) {
			t.Errorf("%s: %d bytes are set aside, %v", name, len(aside), err)
		}
		if err := s.Add(used(noon, 1)); err != nil || len(read(t, s, api.StepMinute)) != 1 {
			t.Errorf("%s: the new file does not work: %v", name, err)
		}
		s.Close()
	}
}

// A file that the system cannot open does not count as damaged, and stays where it is.
func TestUnopenedStoreStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	s := openStore(t, path)
	if err := s.Add(used(noon, 7)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := Open(path)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("with too many open files: %v", err)
	}
	if list := read(t, openStore(t, path), api.StepMinute); len(list) != 1 {
		t.Errorf("afterwards the history is %+v", list)
	}
}

// Files that were set aside earlier stay, up to mostAside.
func TestDamagedStoresStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	for i, want := range []string{".damaged", ".damaged-2", ".damaged-3", ".damaged-3"} {
		if err := os.WriteFile(path, fmt.Append(nil, "damage ", i), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path)
		d, ok := errors.AsType[*DamagedError](err)
		if !ok || d.Aside != path+want {
			t.Fatalf("the file is set aside: %v", err)
		}
		s.Close()
	}
	if data, err := os.ReadFile(path + ".damaged"); string(data) != "damage 0" {
		t.Errorf("the first became %q, %v", data, err)
	}
}

// An empty file, as a power cut may leave it at the first start, is accepted.
func TestEmptyStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	openStore(t, path)
}

// What cannot be written is written later, and reported in the meantime.
func TestRecorderKeepsWhatCannotBeWritten(t *testing.T) {
	r := NewRecorder(t.TempDir(), nil, slog.New(slog.DiscardHandler))
	good := r.store
	defer good.Close()
	broken := openStore(t, filepath.Join(t.TempDir(), "other.db"))
	broken.Close()
	r.store = broken
	r.pending = byMinute{used(noon, 7)}
	r.keep()
	if r.Problem() == "" {
		t.Error("no problem is reported")
	}
	r.store = good
	r.pending.add(used(noon, 5), noon.Add(time.Minute), noon.Add(time.Minute))
	r.keep()
	if list := read(t, good, api.StepMinute); r.Problem() != "" || len(list) != 2 || list[0].Paths[0].Received != 7 || list[1].Paths[0].Received != 5 {
		t.Errorf("kept are %+v, the problem is %q", list, r.Problem())
	}
}

// Answers include what transfers that continue have gained so far. That is not written before it is known, so it is not
// counted twice.
func TestRecorderAnswersWithOpenTransfers(t *testing.T) {
	r := NewRecorder(t.TempDir(), nil, slog.New(slog.DiscardHandler))
	defer r.store.Close()
	s := newScene(t, api.TrafficBulk)
	s.queues(60, 60)
	s.run(3, 1e6, 1e6)
	unknown := func() float64 {
		r.take(&s.o)
		r.keep()
		h, err := r.History(api.HistoryRequest{Step: api.StepHour}, s.now)
		if err != nil {
			t.Fatal(err)
		}
		return h.Total.Gained.SavedUnknown
	}
	open := unknown()
	if all := sum(read(t, r.store, api.StepMinute)); open < 9 || all.Gained.SavedUnknown != 0 {
		t.Errorf("open transfers saved up to %v s, of which %v s are written", open, all.Gained.SavedUnknown)
	}
	s.o.Settle()
	s.want("time saved at the end", unknown(), open, 1e-6)
}

// Minutes that cannot be written for days are joined, so that they take little memory. Nothing is lost.
func TestRecorderIsBounded(t *testing.T) {
	r := NewRecorder(t.TempDir(), nil, slog.New(slog.DiscardHandler))
	r.store.Close()
	const days = 40
	for i := range days * 24 * 60 {
		at := noon.Add(time.Duration(i) * time.Minute)
		r.pending.add(used(at, 1), at, at)
		r.keep()
	}
	if all := sum(r.pending); len(r.pending) > mostPending || all.Paths[0].Received != days*24*60 {
		t.Errorf("%d periods, which are %+v", len(r.pending), all)
	}
}

// What is observed while a minute begins is divided in proportion to time. A stall counts in the minute in which it
// begins. If the clock is set back, minutes get more.
func TestMinuteBorders(t *testing.T) {
	p := api.Period{Observed: 3, Paths: []api.PathUsed{{Kind: "direct", Received: 100, RTT: 20, Samples: 1}}, Gained: api.Gained{Stalls: 1, StallTime: 3}}
	var m byMinute
	m.add(p, noon.Add(59*time.Second), noon.Add(62*time.Second))
	m.add(p, noon.Add(-3*time.Second), noon)
	m.add(p, noon.Add(10*time.Second), noon.Add(13*time.Second))
	m.add(p, noon.Add(59*time.Second), noon.Add(3*time.Minute+59*time.Second)) // as if in one observation
	want := []struct {
		observed float64
		received uint64
		stalls   uint64
		samples  uint64
	}{{3, 100, 1, 1}, {4 + 1./60, 133, 3, 1}, {3, 100, 0, 1}, {1, 34, 0, 0}, {1 - 1./60, 33, 0, 1}}
	if len(m) != len(want) {
		t.Fatalf("%d minutes: %+v", len(m), m)
	}
	for i, w := range want {
		is := &m[i]
		if !is.Start.Equal(noon.Add(time.Duration(i-1)*time.Minute)) || math.Abs(is.Observed-w.observed) > 1e-6 || math.Abs(is.Gained.StallTime-w.observed) > 1e-6 ||
			is.Paths[0].Received != w.received || is.Paths[0].Samples != w.samples || is.Gained.Stalls != w.stalls {
			t.Errorf("minute %d is %+v, want %+v", i, is, w)
		}
	}
}

// Hours and days begin by the clock on the wall, also where that is half an hour off. When a clock goes back an hour,
// the repeated hour is another one.
func TestHoursOfTimeZones(t *testing.T) {
	india := time.FixedZone("", 5*3600+1800)
	at := time.Date(2026, 3, 1, 0, 10, 0, 0, india)
	for step, want := range map[api.HistoryStep]time.Time{
		api.StepMinute: at, api.StepHour: at.Add(-10 * time.Minute), api.StepDay: at.Add(-10 * time.Minute), api.StepMonth: at.Add(-10 * time.Minute),
	} {
		if is := begin(at.Add(59*time.Second), step); !is.Equal(want) {
			t.Errorf("the %s begins at %v", step, is)
		}
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip("needs the machine's time zones: ", err)
	}
	first := time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC).In(berlin) // 02:30, for the first time
	if a, b := begin(first, api.StepHour), begin(first.Add(time.Hour), api.StepHour); !b.Equal(a.Add(time.Hour)) {
		t.Errorf("the hours begin at %v and %v", a, b)
	}
}

// Periods in which nothing was carried have an empty list of paths in JSON, as the page reads it, and not null.
func TestIdlePeriodHasAnEmptyList(t *testing.T) {
	r := NewRecorder(t.TempDir(), nil, slog.New(slog.DiscardHandler))
	defer r.store.Close()
	r.pending = byMinute{{Start: noon, Observed: 60}}
	r.keep()
	for _, at := range []time.Time{noon, noon.Add(2 * time.Hour)} {
		h, err := r.History(api.HistoryRequest{Step: api.StepHour, Since: at.Add(-time.Hour)}, at.Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(h)
		if err != nil || bytes.Contains(b, []byte("null")) {
			t.Errorf("%v: %s, %v", at, b, err)
		}
	}
}

// An answer contains what is not written yet, in its own minutes, and begins with the period that contains Since. A wrong
// step is refused.
func TestHistoryHasTheCurrentMinute(t *testing.T) {
	r := NewRecorder(t.TempDir(), nil, slog.New(slog.DiscardHandler))
	defer r.store.Close()
	r.pending = byMinute{used(noon.Add(-time.Minute), 1), used(noon, 7)}
	r.keep()
	r.pending = byMinute{used(noon, 5), used(noon.Add(time.Minute), 3)}
	now := noon.Add(70 * time.Second)
	h, err := r.History(api.HistoryRequest{Step: api.StepMinute, Since: now.Add(-30 * time.Second)}, now)
	if err != nil || len(h.Periods) != 2 || h.Periods[0].Paths[0].Received != 12 || h.Periods[1].Paths[0].Received != 3 || h.Periods[1].Start.After(now) {
		t.Errorf("%+v, %v", h, err)
	}
	h, err = r.History(api.HistoryRequest{Step: api.StepHour}, now)
	if err != nil || len(h.Periods) != 2 || h.Periods[1].Paths[0].Received != 15 || h.Total.Paths[0].Received != 16 {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := r.History(api.HistoryRequest{Step: "week"}, noon); err == nil {
		t.Error("a week is a step")
	}
}
