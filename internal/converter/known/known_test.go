package known

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Unix(1_800_000_000, 0)

// TestMap compares a Map with a list that is searched from its end.
func TestMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type line struct {
			key, value int
			until      time.Time
		}
		most := rapid.IntRange(0, 4).Draw(t, "most")
		m := NewMap[int, int](most)
		var lines []line // the most recently used last
		now := start
		take := func(key int) (line, bool) {
			i := slices.IndexFunc(lines, func(l line) bool { return l.key == key })
			if i < 0 {
				return line{}, false
			}
			l := lines[i]
			lines = slices.Delete(lines, i, i+1)
			return l, true
		}
		key := rapid.IntRange(0, 6)
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				l := line{key.Draw(t, "key"), rapid.Int().Draw(t, "value"), now.Add(time.Duration(rapid.IntRange(-1, 5).Draw(t, "for")))}
				m.Set(l.key, l.value, l.until)
				take(l.key)
				lines = append(lines, l)
				lines = lines[max(0, len(lines)-most):]
			},
			"get": func(t *rapid.T) {
				k := key.Draw(t, "key")
				got, ok := m.Get(k, now)
				l, there := take(k)
				there = there && now.Before(l.until)
				if there {
					lines = append(lines, l)
				}
				if ok != there || ok && got != l.value {
					t.Fatalf("key %d: %d, %v, want %d, %v", k, got, ok, l.value, there)
				}
			},
			"forget": func(t *rapid.T) { k := key.Draw(t, "key"); m.Forget(k); take(k) },
			"wait":   func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, 3).Draw(t, "time"))) },
			"": func(t *rapid.T) {
				all := maps.Collect(m.All(now))
				for _, l := range lines {
					if value, ok := all[l.key]; ok != now.Before(l.until) || ok && value != l.value {
						t.Fatalf("all are %v, want %v", all, lines)
					}
					delete(all, l.key)
				}
				if len(all) > 0 {
					t.Fatalf("besides %v there are %v", lines, all)
				}
				if m.Len() != len(lines) || m.Len() > most || m.recent.Len() != m.Len() {
					t.Fatalf("%d keys, %d in order, want %d", m.Len(), m.recent.Len(), len(lines))
				}
			},
		})
	})
}

func TestServers(t *testing.T) {
	s := NewServers(2)
	plain, speaks, other := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("192.0.2.1:443"), netip.MustParseAddrPort("192.0.2.2:80")
	s.Learn(plain, false, start)
	s.Learn(speaks, true, start)
	for _, c := range []struct {
		after  time.Duration
		server netip.AddrPort
		want   Support
	}{
		{0, other, Unknown}, {0, plain, Plain}, {0, speaks, MPTCP},
		{PlainFor - 1, plain, Plain}, {PlainFor, plain, Unknown},
		{SpeaksFor - 1, speaks, MPTCP}, {SpeaksFor, speaks, Unknown},
	} {
		if got := s.Support(c.server, start.Add(c.after)); got != c.want {
			t.Errorf("%v after %v: %v, want %v", c.server, c.after, got, c.want)
		}
	}
	s.Learn(plain, true, start)
	s.Learn(plain, false, start)
	if got := s.Support(plain, start); got != Plain {
		t.Errorf("learned again: %v", got)
	}
	s.Learn(plain, true, start.Add(2))
	s.Learn(plain, false, start.Add(1))
	if got := s.Support(plain, start.Add(2)); got != MPTCP {
		t.Errorf("an older finding counts more: %v", got)
	}
}
