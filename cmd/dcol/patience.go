package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/printable"
)

// A command that waits longer than sayAfter prints the reason, and repeats it every sayAgain.
const (
	sayAfter = time.Second
	sayAgain = 5 * time.Second
)

// patiently calls do. If that takes longer than a moment, it prints the reason on standard error.
func patiently(waitsFor func() string, do func()) {
	began, done := time.Now(), make(chan struct{})
	var saying sync.WaitGroup
	saying.Go(func() {
		for wait := sayAfter; ; wait = sayAgain {
			select {
			case <-done:
				return
			case <-time.After(wait):
				fmt.Fprintf(os.Stderr, "waiting, for %d s now: %s\n", int(time.Since(began).Seconds()), printable.Text(waitsFor()))
			}
		}
	})
	do()
	close(done)
	saying.Wait()
}

// dial returns a Client of the agent. It tells the user if an answer takes long.
func dial(socket string) *api.Client {
	return api.Dial(socket).Around(func(request func()) { patiently(always("the agent's answer"), request) })
}

// addressesOf resolves a host's name. It tells the user if that takes long. network is ip, ip4 or ip6.
func addressesOf(ctx context.Context, network, host string) (list []netip.Addr, err error) {
	patiently(always("the addresses of "+host), func() { list, err = net.DefaultResolver.LookupNetIP(ctx, network, host) })
	return list, err
}

// always returns a function that returns text, for a wait whose reason does not change.
func always(text string) func() string { return func() string { return text } }
