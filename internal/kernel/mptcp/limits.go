package mptcp

import (
	"fmt"
	"os"
)

// Limit is a feature that some kernels with a userspace path manager lack. dcol works without it, with a disadvantage.
type Limit struct {
	Feature
	Price string // the disadvantage of kernels without it
}

// The limits, with the first version that does not have each.
var (
	JoinFlags = Limit{
		Feature{"priority and interface of joins", "6.9", "boot a newer kernel, or leave the interface to the routes"},
		"a backup says so with the packet after its SYN, and no join is bound to an interface",
	}
	ByteCounters = Limit{
		Feature{"byte counters of connections", "6.5", "boot a newer kernel, or add up the subflows"},
		"only the bytes of subflows are known",
	}
)

// Limits returns the limits of the running kernel.
func Limits() ([]Limit, error) {
	release, err := kernelRelease()
	if err != nil {
		return nil, err
	}
	return LimitsOf(release)
}

// LimitsOf returns the limits of a kernel release, such as "6.1.0-50-amd64".
func LimitsOf(release string) ([]Limit, error) {
	var found []Limit
	for _, l := range []Limit{JoinFlags, ByteCounters} {
		older, err := olderThan(release, l.MinKernel)
		if err != nil {
			return nil, err
		}
		if older {
			found = append(found, l)
		}
	}
	return found, nil
}

func kernelRelease() (string, error) {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "", fmt.Errorf("find out the kernel's version: %w", err)
	}
	return string(release), nil
}

func olderThan(release, version string) (bool, error) {
	var major, minor, wantMajor, wantMinor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return false, fmt.Errorf("the kernel's release %q is not a version: %w", release, err)
	}
	if _, err := fmt.Sscanf(version, "%d.%d", &wantMajor, &wantMinor); err != nil {
		return false, fmt.Errorf("%q is not a version: %w", version, err)
	}
	return major < wantMajor || major == wantMajor && minor < wantMinor, nil
}
