package cookie

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCookie(t *testing.T) {
	client := netip.MustParseAddr("192.0.2.7")
	now := time.Unix(1_800_000_000, 0)
	key := Key{1}
	sealed := key.Seal(Claim{Mark: 0x81000005, Client: client, Expires: now.Add(time.Minute)})
	for _, c := range []struct {
		name   string
		key    Key
		b      []byte
		client netip.Addr
		at     time.Time
		want   error
	}{
		{"valid", key, sealed, client, now, nil},
		{"padded, and the address in its IPv6 form", key, append(sealed[:Len:Len], 0, 0, 0), netip.MustParseAddr("::ffff:192.0.2.7"), now, nil},
		{"from another address", key, sealed, netip.MustParseAddr("192.0.2.8"), now, ErrForged},
		{"another key", Key{2}, sealed, client, now, ErrForged},
		{"too late", key, sealed, client, now.Add(time.Minute), ErrExpired},
		{"short", key, sealed[:Len-1], client, now, ErrForged},
		{"none", key, nil, client, now, ErrForged},
	} {
		mark, err := c.key.Open(c.b, c.client, c.at)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if c.want == nil && mark != 0x81000005 {
			t.Errorf("%s: mark %#x", c.name, mark)
		}
	}
}

// TestChangedCookieIsForged changes one bit anywhere.
func TestChangedCookieIsForged(t *testing.T) {
	client, now, key := netip.MustParseAddr("2001:db8::1"), time.Unix(1_800_000_000, 0), Key{3}
	rapid.Check(t, func(t *rapid.T) {
		b := key.Seal(Claim{rapid.Uint32().Draw(t, "mark"), client, now.Add(time.Hour)})
		b[rapid.IntRange(0, Len-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if _, err := key.Open(b, client, now); err == nil {
			t.Fatal("a changed cookie is accepted")
		}
	})
}
