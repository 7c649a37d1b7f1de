package main

import (
	"fmt"
	"os"
	"sync"
	"time"

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

// always returns a function that returns text, for a wait whose reason does not change.
func always(text string) func() string { return func() string { return text } }
