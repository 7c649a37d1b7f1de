package units

import "fmt"

// FormatRate returns a measured rate in bits per second for people, such as 18.7 Mbit/s.
func FormatRate(bps float64) string {
	switch {
	case bps < 1e3:
		return fmt.Sprintf("%.0f bit/s", bps)
	case bps < 1e6:
		return fmt.Sprintf("%.1f kbit/s", bps/1e3)
	case bps < 1e9:
		return fmt.Sprintf("%.1f Mbit/s", bps/1e6)
	}
	return fmt.Sprintf("%.2f Gbit/s", bps/1e9)
}

// FormatBytes returns a measured number of bytes for people, such as 3.2 MB.
func FormatBytes(n uint64) string {
	switch {
	case n < 1e3:
		return fmt.Sprintf("%d B", n)
	case n < 1e6:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	case n < 1e9:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.2f GB", float64(n)/1e9)
}
