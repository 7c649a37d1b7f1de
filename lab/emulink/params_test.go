package emulink

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestValidateNamesTheValue(t *testing.T) {
	tests := []struct {
		params Params
		want   string // "" is valid
	}{
		{Params{}, ""},
		{Params{Rate: 1e9, Delay: time.Second, Jitter: time.Second, Loss: 1, Queue: 1 << 20}, ""},
		{Params{Rate: -1}, "rate -1 bit/s"},
		{Params{Rate: math.MaxInt64}, "rate"},
		{Params{Delay: -1}, "delay"},
		{Params{Delay: time.Hour}, "delay"},
		{Params{Delay: 1, Jitter: 2}, "jitter"},
		{Params{Loss: 1.1}, "loss 1.1"},
		{Params{Loss: math.NaN()}, "loss NaN"},
		{Params{Queue: -1}, "queue"},
		{Params{Queue: math.MaxInt}, "queue"},
		{Params{Impairments: Impairments{Burst: 1, BurstLength: 1, BurstLoss: 1, Reorder: 1, ReorderBy: time.Second, Duplicate: 1, Corrupt: 1, Tamper: 1}}, ""},
		{Params{Impairments: Impairments{Burst: 1.1}}, "burst 1.1"},
		{Params{Impairments: Impairments{BurstLength: 0.5}}, "burst_length 0.5"},
		{Params{Impairments: Impairments{BurstLength: math.NaN()}}, "burst_length NaN"},
		{Params{Impairments: Impairments{BurstLoss: -1}}, "burst_loss -1"},
		{Params{Impairments: Impairments{Reorder: 2}}, "reorder 2"},
		{Params{Impairments: Impairments{ReorderBy: time.Hour}}, "reorder_by 1h0m0s"},
		{Params{Impairments: Impairments{Duplicate: 2}}, "duplicate 2"},
		{Params{Impairments: Impairments{Corrupt: math.NaN()}}, "corrupt NaN"},
		{Params{Impairments: Impairments{Tamper: 2}}, "tamper 2"},
	}
	for _, test := range tests {
		err := test.params.Validate()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%+v: %v", test.params, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%+v: error %v, want it to say %q", test.params, err, test.want)
		}
	}
}
