// Package words renders reasons and numbers of the path manager's decisions as text for people.
package words

import (
	"fmt"
	"time"
)

// Failure returns why something ended. A nil error stands for an orderly end.
func Failure(err error) string {
	if err == nil {
		return "closed by the other end"
	}
	return err.Error()
}

// MS rounds a duration so that it is shown in milliseconds with at most one decimal.
func MS(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// Mbit renders a rate in bits a second.
func Mbit(rate float64) string { return fmt.Sprintf("%.1f Mbit/s", rate/1e6) }
