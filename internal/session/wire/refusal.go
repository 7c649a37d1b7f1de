package wire

import (
	"fmt"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/printable"
)

// Code is the reason for refusing a request.
type Code uint8

// The codes. Numbers are never reused.
const (
	DestinationForbidden Code = 1
	QuotaMappings        Code = 2
	QuotaConnections     Code = 3
	RateLimited          Code = 4
	NotOffered           Code = 5
	FamilyMismatch       Code = 6
	Malformed            Code = 7
	ShuttingDown         Code = 8
	Busy                 Code = 9
	Internal             Code = 10
	SwitchedOff          Code = 11
	OutsideHours         Code = 12
	QuotaTraffic         Code = 13
	QuotaTunnels         Code = 14
	NotReady             Code = 15
	Loaded               Code = 16
	PortForbidden        Code = 17
	PortTaken            Code = 18
	QuotaPorts           Code = 19
	PortUnusable         Code = 20
)

var codes = map[Code]struct{ name, text string }{
	DestinationForbidden: {"destination-forbidden", "the waypoint does not forward to this destination"},
	QuotaMappings:        {"quota-mappings", "you have reached the limit of mappings per member; wait until idle ones expire, or ask the waypoint's operator for more ([waypoint] mappings_per_member)"},
	QuotaConnections:     {"quota-connections", "you have reached the limit of connections per member; close some, or ask the waypoint's operator for more ([waypoint] connections_per_member)"},
	QuotaTunnels:         {"quota-tunnels", "you have reached the limit of tunnels per member; those of stopped agents end with their lease; or ask the waypoint's operator for more ([waypoint] tunnels_per_member)"},
	RateLimited:          {"rate-limited", "you send requests faster than the waypoint allows; try again later"},
	NotOffered:           {"not-offered", "the waypoint does not offer this; use another waypoint"},
	FamilyMismatch:       {"family-mismatch", "a session over IPv4 gets detours to IPv4 servers only, and one over IPv6 to IPv6 servers only; add an address of the server's family for this waypoint"},
	Malformed:            {"malformed", "the waypoint does not understand the request; one of the two dcol versions is older: update it"},
	ShuttingDown:         {"shutting-down", "the waypoint's agent is stopping; try again later or use another waypoint"},
	Busy:                 {"busy", "too many of your requests are waiting at the waypoint; try again later"},
	NotReady:             {"not-ready", "the waypoint does not know enough about its network yet; try again later or use another waypoint"},
	Loaded:               {"loaded", "the waypoint has as much to do as it can; use another waypoint for a while"},
	SwitchedOff:          {"switched-off", "the waypoint's operator has switched it off; use another waypoint"},
	OutsideHours:         {"outside-hours", "the waypoint is closed at this hour; use another waypoint"},
	QuotaTraffic:         {"quota-traffic", "the waypoint's monthly quota is used up; use another waypoint"},
	PortForbidden:        {"port-forbidden", "members may not have this port of the converter; choose another one, or ask its operator to allow it ([waypoint] converter_incoming)"},
	PortTaken:            {"port-taken", "another member has this port of the converter, or a program of the converter's host; choose another one"},
	PortUnusable:         {"port-unusable", "the converter cannot listen at this port, and goes on trying; choose another one, or ask its operator, whose dcol status says why"},
	QuotaPorts:           {"quota-ports", "you have as many ports of the converter as a member may have; remove some"},
	Internal:             {"internal", "the waypoint failed; its log has the cause"},
}

func (c Code) String() string {
	if known, ok := codes[c]; ok {
		return known.name
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// Closed reports whether the code means that the waypoint gives nothing to any member for now.
func (c Code) Closed() bool { return c == SwitchedOff || c == OutsideHours || c == QuotaTraffic }

// Text describes the code for users. It is empty for unknown codes of newer versions.
func (c Code) Text() string { return codes[c].text }

// Refusal is the negative answer to a request. As an error, its text tells users what to do.
type Refusal struct {
	ID         uint64
	Code       Code
	Message    string        // the waypoint's explanation for users; may be empty
	RetryAfter time.Duration // 0: repeating the request is useless before something changes
}

func (r *Refusal) Error() string {
	var b strings.Builder
	b.WriteString("refused (" + r.Code.String() + ")")
	if r.Message != "" {
		b.WriteString(": " + r.Message)
	}
	if known, ok := codes[r.Code]; ok && (r.Message == "" || r.Code != DestinationForbidden) { // otherwise the message already names the code
		b.WriteString(": " + known.text)
	}
	if r.RetryAfter > 0 {
		fmt.Fprintf(&b, " (try again in %v)", r.RetryAfter)
	}
	return b.String()
}

// Is compares codes, so that errors.Is(err, &Refusal{Code: Busy}) checks the reason only.
func (r *Refusal) Is(target error) bool {
	t, ok := target.(*Refusal)
	return ok && t.Code == r.Code
}

// maxText bounds a Message, in bytes.
const maxText = 400

// cleanText makes text from others short and safe to print on a terminal.
func cleanText(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = printable.Text(s)
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	return s
}
