package mptcp_test

import (
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

func TestLimitsOf(t *testing.T) {
	for release, want := range map[string][]mptcp.Limit{
		"5.19.0":               {mptcp.JoinFlags, mptcp.ByteCounters},
		"6.1.0-50-amd64\n":     {mptcp.JoinFlags, mptcp.ByteCounters},
		"6.5":                  {mptcp.JoinFlags},
		"6.8.12":               {mptcp.JoinFlags},
		"6.9-rc1":              nil,
		"6.12.107+deb13-amd64": nil,
		"6.18.44":              nil,
		"10.0.0":               nil,
	} {
		got, err := mptcp.LimitsOf(release)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("limits of %q: %v, error %v; want %v", release, got, err, want)
		}
	}
	for _, release := range []string{"", "plan9", "6", "six.one"} {
		if _, err := mptcp.LimitsOf(release); err == nil {
			t.Errorf("%q passes for a version", release)
		}
	}
}
