package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/printable"
)

// sayAfter is how long a command waits in silence, and sayAgain how often it says from then on what it waits for.
const (
	sayAfter = 2 * time.Second
	sayAgain = 5 * time.Second
)

// patiently calls do. If that takes longer than a moment, it says on standard error what it waits for.
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

// always is what is waited for if that does not change.
func always(text string) func() string { return func() string { return text } }
