package portmap

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// httpTimeout bounds each request to a device.
	httpTimeout = 3 * time.Second
	// maxDocument bounds the size of a device's document in bytes, and maxHeader the size of its header.
	maxDocument = 256 << 10
	maxHeader   = 16 << 10
	// maxDepth and maxElements bound the XML of documents.
	maxDepth    = 32
	maxElements = 4096
)

// document fetches a device's document on a connection of its own, without proxies and redirections. The connection's
// local address is own, because many devices open ports only to the address that asks. An http.Client is not suitable:
// it connects on another thread, which may be in another network namespace.
func document(ctx context.Context, own netip.Addr, request *http.Request) (status int, body []byte, err error) {
	dialer := net.Dialer{Timeout: httpTimeout, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(own, 0))}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(request.URL.Hostname(), cmp.Or(request.URL.Port(), "80")))
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(httpTimeout))
	unhook := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	request.Close = true
	if err := request.Write(conn); err != nil {
		return 0, nil, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxDocument+maxHeader)), request)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(io.LimitReader(answer.Body, maxDocument+1))
	if err == nil && len(body) > maxDocument {
		err = fmt.Errorf("the document has more than %d bytes", maxDocument)
	}
	return answer.StatusCode, body, err
}

// argument is an argument of an action.
type argument struct{ name, value string }

// call calls an action of a device's service and returns its results.
func call(ctx context.Context, own netip.Addr, at *url.URL, service, action string, in ...argument) (map[string]string, error) {
	var b bytes.Buffer
	b.WriteString(xml.Header + `<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" s:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>`)
	fmt.Fprintf(&b, `<u:%s xmlns:u="%s">`, action, service)
	for _, a := range in {
		fmt.Fprintf(&b, "<%s>", a.name)
		if err := xml.EscapeText(&b, []byte(a.value)); err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "</%s>", a.name)
	}
	fmt.Fprintf(&b, "</u:%s></s:Body></s:Envelope>", action)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), &b)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", `text/xml; charset="utf-8"`)
	request.Header.Set("SOAPAction", `"`+service+"#"+action+`"`)
	status, body, err := document(ctx, own, request)
	if err != nil {
		return nil, fmt.Errorf("UPnP %s: %w", action, err)
	}
	out, err := leaves(body)
	switch {
	case status == http.StatusOK && err == nil:
		return out, nil
	case status == http.StatusInternalServerError && err == nil && out["errorCode"] != "":
		return nil, refusedIGD(out["errorCode"], out["errorDescription"])
	case err == nil:
		err = fmt.Errorf("HTTP status %d", status)
	}
	return nil, fmt.Errorf("UPnP %s: %w", action, err)
}

var errTooMuch = errors.New("the document is too large or too deep")

// leaves returns the texts of elements by name. If a name occurs twice, the last one counts.
func leaves(document []byte) (map[string]string, error) {
	found := make(map[string]string)
	err := walk(document, func(name, text string) { found[name] = text })
	return found, err
}

// walk calls element at the end of each element of a document, with its name and the text since the
// previous end.
func walk(document []byte, element func(name, text string)) error {
	d := xml.NewDecoder(bytes.NewReader(document))
	// Some routers declare charsets that they do not use.
	d.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	var text strings.Builder
	depth, seen := 0, 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			if seen == 0 {
				return errors.New("there is no document")
			}
			return nil
		}
		if err != nil {
			return err
		}
		switch t := token.(type) {
		case xml.StartElement:
			if seen++; seen > maxElements || depth == maxDepth {
				return errTooMuch
			}
			depth++
			text.Reset()
		case xml.CharData:
			text.Write(t)
		case xml.EndElement:
			element(t.Name.Local, strings.TrimSpace(text.String()))
			depth--
			text.Reset()
		}
	}
}

// Codes of refusals that are handled (WANIPConnection:2, 2.5.16).
const (
	igdNotAuthorized  = 606
	igdConflict       = 718
	igdPermanentOnly  = 725
	igdOtherMechanism = 729
)

func refusedIGD(code, description string) error {
	number, err := strconv.Atoi(code)
	if err != nil {
		return fmt.Errorf("the UPnP device refused with code %.20q", code)
	}
	why := map[int]string{
		501: "it failed", igdNotAuthorized: "not allowed", 714: "there is no such port", igdConflict: "the port is in use by another host",
		724: "it requires the same internal and external port", igdPermanentOnly: "it opens ports only without a time limit",
		728: "it has no room for more ports", igdOtherMechanism: "the port is already open in another way",
	}[number]
	if why == "" {
		why = fmt.Sprintf("%.80q", description)
	}
	return &RefusedError{By: "UPnP", Code: number, Why: why}
}
