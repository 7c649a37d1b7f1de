// Package words renders reasons and numbers of the path manager's decisions as text for people.
package words

import (
	"fmt"
	"strconv"
	"time"
)

// Failure returns why something ended. A nil error stands for an orderly end.
func Failure(err error) string {
	if err == nil {
		return "closed by the other end"
	}
	return err.Error()
}

// MS renders a short time in milliseconds.
func MS(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond)) }

// Seconds renders a time in seconds.
func Seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Round(10*time.Millisecond).Seconds(), 'f', -1, 64) + " s"
}

// Mbit renders a rate in bits a second.
func Mbit(rate float64) string { return fmt.Sprintf("%.1f Mbit/s", rate/1e6) }
