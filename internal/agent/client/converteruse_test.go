package client

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/detour"
)

// TestConvertingFastOpen: the relay sends messages in SYNs if the configuration wants it.
func TestConvertingFastOpen(t *testing.T) {
	for _, want := range []bool{false, true} {
		if got := Converting(config.Client{Converter: config.Convert{Use: config.ConvertAuto, FastOpen: want}}, 0).FastOpen; got != want {
			t.Errorf("%v becomes %v", want, got)
		}
	}
}

// TestConvertingNever: without converters, the relay has the proxy to serve if there is one, and nothing else.
func TestConvertingNever(t *testing.T) {
	c := config.Convert{
		Use: config.ConvertNever, Gateway: []string{"lan0"}, Capture: config.CaptureHost, ExcludeDomains: []string{"example.org"},
	}
	if use := Converting(config.Client{Converter: c}, 0); use != nil {
		t.Errorf("without a proxy: %+v", use)
	}
	c.Proxy = "127.0.0.1:1080"
	if use := Converting(config.Client{Converter: c}, 0); !reflect.DeepEqual(use, &relay.Use{Mode: choice.Never, Proxy: c.Proxy}) {
		t.Errorf("with a proxy: %+v", use)
	}
	settings := &config.Config{Client: config.Client{Converter: c}}
	x := newConverters(settings)
	x.admitted[detour.Via{Waypoint: "bob"}] = admittedConverter{expires: time.Now().Add(time.Hour)}
	neighbours := func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} }
	if use := x.orders(time.Now(), neighbours); use == nil || use.Proxy != c.Proxy || len(use.Converters) > 0 {
		t.Errorf("the relay is told %+v", use)
	}
}
