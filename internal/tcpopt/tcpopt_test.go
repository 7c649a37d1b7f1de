package tcpopt

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBytes(t *testing.T) {
	for _, c := range []struct {
		r    Request
		want []byte
	}{
		{Request{UserTimeout, 30}, []byte{28, 4, 0, 30}},
		{Request{UserTimeout, 40000}, []byte{28, 4, 0x82, 0x9b}}, // 667 minutes
		{Request{Congestion, 4}, []byte{254, 6, 0xdc, 0x11, 0, 4}},
		{Request{InitialWindow, 300}, []byte{254, 6, 0xdc, 0x12, 1, 44}},
		{Request{DelayedACK, Strategy{Fraction: 16, Segments: 2}.Value()}, []byte{254, 6, 0xdc, 0x13, 16, 2}},
		{Request{Rate, RateValue(4e6)}, []byte{254, 6, 0xdc, 0x14, 1, 0xf4}},
		{Request{Rate, RateValue(1)}, []byte{254, 6, 0xdc, 0x14, 0, 1}},
		{Request{Rate, RateValue(1e12)}, []byte{254, 6, 0xdc, 0x14, 0xff, 0xff}},
	} {
		if got := Append(nil, c.r); !bytes.Equal(got, c.want) {
			t.Errorf("%v: % x, want % x", c.r, got, c.want)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []byte
		var want []Request
		for _, o := range Options {
			if !rapid.Bool().Draw(t, o.String()) {
				continue
			}
			r := Request{Option: o, Value: rapid.Uint32Range(0, 0x7fff).Draw(t, "value")}
			all, want = append(Append(all, r), 1), append(want, r)
		}
		got, err := Parse(all)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	})
}

func TestBadBytes(t *testing.T) {
	good := Append(nil, Request{InitialWindow, 20})
	for _, c := range []struct {
		name  string
		bytes []byte
		want  int
		bad   bool
	}{
		{"none", nil, 0, false},
		{"a kind without a length", []byte{28}, 0, false},
		{"length 0", []byte{28, 0, 0, 0}, 0, false},
		{"length 1", []byte{254, 1, 0xdc, 0x11}, 0, false},
		{"truncated", good[:5], 0, false},
		{"longer than the header", []byte{254, 40, 0xdc, 0x11, 0, 1}, 0, false},
		{"too long", []byte{254, 8, 0xdc, 0x11, 0, 1, 0, 0}, 0, true},
		{"too short", []byte{254, 5, 0xdc, 0x12, 1}, 0, true},
		{"RFC 5482's too long", []byte{28, 6, 0, 1, 0, 0}, 0, true},
		{"an experiment without an id", []byte{254, 3, 0xdc, 1}, 0, false},
		{"another experiment", []byte{254, 6, 0xdc, 0x01, 0, 1}, 0, false},
		{"repeated", append(slices.Clone(good), Append(nil, Request{InitialWindow, 40})...), 1, false},
		{"after the end", append([]byte{0}, good...), 0, false},
		{"a bad one before a good one", append([]byte{254, 5, 0xdc, 0x11, 1}, good...), 1, true},
	} {
		got, err := Parse(c.bytes)
		_, bad := errors.AsType[*FormatError](err)
		if len(got) != c.want || bad != c.bad || (err != nil) != c.bad {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

func TestBounds(t *testing.T) {
	b := Bounds{UserTimeoutMin: 10 * time.Second, UserTimeoutMax: time.Minute, Congestions: []string{"bbr"}, WindowMax: 40, RateMin: 12}
	for _, c := range []struct {
		r       Request
		granted uint32
		v       Verdict
	}{
		{Request{UserTimeout, 30}, 30, Granted},
		{Request{UserTimeout, 1}, 10, Capped},
		{Request{UserTimeout, 1 << 20}, 60, Capped},
		{Request{UserTimeout, 0}, 0, OutOfBounds},
		{Request{Congestion, 4}, 4, Granted},
		{Request{Congestion, 2}, 0, Unknown},
		{Request{Congestion, 65535}, 0, Unknown},
		{Request{InitialWindow, 20}, 20, Granted},
		{Request{InitialWindow, 65535}, 40, Capped},
		{Request{InitialWindow, 0}, 0, OutOfBounds},
		{Request{DelayedACK, 0x0002}, 0, OutOfBounds},
		{Request{DelayedACK, 0x1000}, 0, OutOfBounds},
		{Request{Rate, 0}, 0, OutOfBounds},
		{Request{Rate, 1}, 12, Capped},
		{Request{Rate, 500}, 500, Granted},
		{Request{99, 1}, 0, Unknown},
	} {
		if granted, v := b.Bound(c.r); granted != c.granted || v != c.v {
			t.Errorf("%v: %d, %v; want %d, %v", c.r, granted, v, c.granted, c.v)
		}
	}
}

func TestUserTimeoutField(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		want uint16
	}{{time.Millisecond, 1}, {time.Second, 1}, {32767 * time.Second, 32767}, {32768 * time.Second, 0x8000 | 547}, {UserTimeoutMax, 0xffff}, {2 * UserTimeoutMax, 0xffff}} {
		if got := UserTimeoutField(c.d); got != c.want {
			t.Errorf("%v: %#x, want %#x", c.d, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, o := range Options {
		f.Add(Append(nil, Request{Option: o, Value: 20}))
	}
	f.Add([]byte{254, 5, 0xdc, 0x11, 1, 28, 4, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		got, _ := Parse(data)
		if len(got) > len(Options) {
			t.Errorf("%d requests", len(got))
		}
	})
}
