// Package tcpopt defines the TCP options by which two hosts request settings from each other: their encoding
// (tcpopt.go), and the bounds within which a host grants them (grant.go). It is pure. Package
// internal/kernel/bpf/option implements the same in the kernel.
package tcpopt

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// Option is a TCP option of this package. The values are bits of masks.
type Option uint32

const (
	// UserTimeout requests that the peer end the connection if its data stays unacknowledged for this time (RFC 5482).
	UserTimeout Option = 1 << iota
	// Congestion requests a congestion control.
	Congestion
	// InitialWindow requests an initial congestion window.
	InitialWindow
	// DelayedACK requests a strategy of delayed ACKs.
	DelayedACK
	// Rate requests that the peer limit its rate on a subflow (Tran 2019, 6.4.1).
	Rate
)

// Options lists all options.
var Options = []Option{UserTimeout, Congestion, InitialWindow, DelayedACK, Rate}

var optionNames = map[Option]string{
	UserTimeout: "user-timeout", Congestion: "congestion", InitialWindow: "initial-window", DelayedACK: "delayed-ack", Rate: "rate",
}

func (o Option) String() string {
	if name, ok := optionNames[o]; ok {
		return name
	}
	return fmt.Sprintf("option %d", uint32(o))
}

// The kinds of options (IANA), and our experiment ids (RFC 6994).
const (
	KindUserTimeout = 28
	KindExperiment  = 254

	IDAnnounce      = 0xdc10
	IDCongestion    = 0xdc11
	IDInitialWindow = 0xdc12
	IDDelayedACK    = 0xdc13
	IDRate          = 0xdc14
)

// Congestions maps the numbers in the option to congestion controls. The meaning of a number never changes.
var Congestions = map[uint16]string{
	1: "reno", 2: "cubic", 3: "vegas", 4: "bbr", 5: "westwood", 6: "htcp", 7: "illinois", 8: "dctcp", 9: "lp",
	32: "lia", 33: "olia", 34: "balia", 35: "wvegas",
}

// CongestionNumber returns the number of a congestion control.
func CongestionNumber(name string) (uint16, bool) {
	for n, known := range Congestions {
		if known == name {
			return n, true
		}
	}
	return 0, false
}

// CongestionNames lists the congestion controls that have a number, sorted.
func CongestionNames() (list []string) {
	for _, name := range Congestions {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// Request is an option with its value.
type Request struct {
	Option Option
	// Value is in seconds for UserTimeout, a number of Congestions for Congestion, in segments for InitialWindow, a
	// Strategy.Value for DelayedACK, and in units of RateUnit for Rate.
	Value uint32
}

// Limits of values in the options.
const (
	// UserTimeoutMax is the largest timeout that the option can hold: 15 bits of minutes.
	UserTimeoutMax = 0x7fff * time.Minute
	WindowMax      = 0xffff
	RateMax        = 0xffff * RateUnit
)

// RateUnit is the unit of a Rate's value, in bits a second.
const RateUnit = 8000

// RateValue returns the value of a Rate for a number of bits a second. It rounds up to the next value that the option
// can hold.
func RateValue(bitsPerSecond int64) uint32 {
	return uint32((min(bitsPerSecond, RateMax) + RateUnit - 1) / RateUnit)
}

// Strategy says when a host sends ACKs.
type Strategy struct {
	// Fraction is the longest delay of an ACK, in 64ths of the minimum round trip.
	Fraction uint8
	// Segments is the number of received segments after which an ACK is sent at once.
	Segments uint8
}

// FractionUnit is the unit of Strategy.Fraction: this many are one minimum round trip.
const FractionUnit = 64

// Value returns the strategy as a request's value.
func (s Strategy) Value() uint32 { return uint32(s.Fraction)<<8 | uint32(s.Segments) }

// StrategyOf is the inverse of Strategy.Value.
func StrategyOf(value uint32) Strategy {
	return Strategy{Fraction: uint8(value >> 8), Segments: uint8(value)}
}

// minutesBit is the flag G of RFC 5482: the timeout is in minutes.
const minutesBit = 0x8000

// UserTimeoutField returns the 16 bits of RFC 5482's option for a timeout. It rounds up to seconds, and timeouts above
// about nine hours to minutes.
func UserTimeoutField(d time.Duration) uint16 {
	seconds := (d + time.Second - 1) / time.Second
	if seconds < minutesBit {
		return uint16(seconds)
	}
	return minutesBit | uint16(min((seconds+59)/60, minutesBit-1))
}

// UserTimeoutSeconds decodes the 16 bits of RFC 5482's option.
func UserTimeoutSeconds(field uint16) uint32 {
	if field&minutesBit != 0 {
		return uint32(field&^minutesBit) * 60
	}
	return uint32(field)
}

// Append appends the bytes of a request to b.
func Append(b []byte, r Request) []byte {
	experiment := func(id uint16, value uint16) []byte {
		b = append(b, KindExperiment, 6)
		b = binary.BigEndian.AppendUint16(b, id)
		return binary.BigEndian.AppendUint16(b, value)
	}
	switch r.Option {
	case UserTimeout:
		b = append(b, KindUserTimeout, 4)
		return binary.BigEndian.AppendUint16(b, UserTimeoutField(time.Duration(r.Value)*time.Second))
	case Congestion:
		return experiment(IDCongestion, uint16(r.Value))
	case InitialWindow:
		return experiment(IDInitialWindow, uint16(r.Value))
	case DelayedACK:
		return experiment(IDDelayedACK, uint16(r.Value))
	case Rate:
		return experiment(IDRate, uint16(r.Value))
	}
	return b
}

// FormatError reports an option with a wrong length.
type FormatError struct {
	Option Option
	Length int
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("the option %v is of %d bytes", e.Option, e.Length)
}

// Parse returns the requests in the options area of a TCP header. If an option is repeated, the first one counts. Parse
// skips unknown options and options with a wrong length. The error describes the first option with a wrong length.
func Parse(options []byte) (requests []Request, err error) {
	var seen Option
	for len(options) > 0 {
		if options[0] == 0 { // end of options
			break
		}
		if options[0] == 1 { // no operation
			options = options[1:]
			continue
		}
		if len(options) < 2 || options[1] < 2 || int(options[1]) > len(options) {
			return requests, err // the kernel ignores the rest as well
		}
		one := options[:options[1]]
		options = options[options[1]:]
		o := optionOf(one)
		if o == 0 || seen&o != 0 {
			continue
		}
		seen |= o
		r, e := parseOne(o, one)
		if e != nil {
			if err == nil {
				err = e
			}
			continue
		}
		requests = append(requests, r)
	}
	return requests, err
}

func optionOf(one []byte) Option {
	if one[0] == KindUserTimeout {
		return UserTimeout
	}
	if one[0] != KindExperiment || len(one) < 4 {
		return 0
	}
	switch binary.BigEndian.Uint16(one[2:]) {
	case IDCongestion:
		return Congestion
	case IDInitialWindow:
		return InitialWindow
	case IDDelayedACK:
		return DelayedACK
	case IDRate:
		return Rate
	}
	return 0
}

func parseOne(o Option, one []byte) (Request, error) {
	want := 6
	if o == UserTimeout {
		want = 4
	}
	if len(one) != want {
		return Request{}, &FormatError{Option: o, Length: len(one)}
	}
	value := uint32(binary.BigEndian.Uint16(one[want-2:]))
	if o == UserTimeout {
		value = UserTimeoutSeconds(uint16(value))
	}
	return Request{Option: o, Value: value}, nil
}
