package client

import (
	"testing"

	"github.com/detour-collective/dcol/internal/config"
)

// TestConvertingFastOpen: the relay sends messages in SYNs if the configuration wants it.
func TestConvertingFastOpen(t *testing.T) {
	for _, want := range []bool{false, true} {
		if got := Converting(config.Client{Converter: config.Convert{Use: config.ConvertAuto, FastOpen: want}}, 0).FastOpen; got != want {
			t.Errorf("%v becomes %v", want, got)
		}
	}
}
