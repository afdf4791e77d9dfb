"""What is measured inside of a page, in JavaScript; each returns the offenders, best none."""

from __future__ import annotations

_SHORT = "const short = e => `<${e.tagName}${e.className ? ' .' + (e.className.baseVal ?? \
e.className) : ''}> ${e.textContent.trim().slice(0, 60)}`;"

# Text and elements that reach out of the window and make the page scroll sideways; what a box cuts
# off or scrolls inside of itself does not.
TOO_WIDE = f"""() => {{
    {_SHORT}
    const root = document.scrollingElement
    if (root.scrollWidth <= innerWidth) return []
    const clipped = e => e && e != document.body && (
        getComputedStyle(e).overflowX != 'visible' || clipped(e.parentElement))
    const wide = boxes => [...boxes].some(box => box.right > innerWidth + .5)
    const found = []
    const walker = document.createTreeWalker(document.body)
    const range = document.createRange()
    while (walker.nextNode()) {{
        const node = walker.currentNode, element = node.parentElement
        range.selectNode(node)
        const reaches = node.nodeType == Node.TEXT_NODE && node.data.trim()
            ? wide(range.getClientRects())
            : node instanceof SVGSVGElement && wide([node.getBoundingClientRect()])
        if (reaches && !clipped(element)) found.push(short(element))
    }}
    return [`${{root.scrollWidth}} px`, ...found.slice(0, 10)]
}}"""

# Visible text whose letters are smaller than `least` CSS pixels on the screen.
SMALL_TEXT = """least => {
    const found = []
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    while (walker.nextNode()) {
        const text = walker.currentNode.data.trim(), element = walker.currentNode.parentElement
        if (!text || !element.checkVisibility({ visibilityProperty: true })) continue
        if (['STYLE', 'TITLE', 'DESC'].includes(element.tagName.toUpperCase())) continue
        const matrix = element.getScreenCTM ? element.getScreenCTM() : null
        const scale = matrix ? Math.sqrt(Math.abs(matrix.a * matrix.d - matrix.b * matrix.c)) : 1
        const px = parseFloat(getComputedStyle(element).fontSize) * scale
        if (px < least - .01) found.push(`${px.toFixed(1)} px: ${text.slice(0, 60)}`)
    }
    return found.slice(0, 20)
}"""

# Numbers the summaries, and returns how many there are.
NUMBER_SUMMARIES = """() => {
    const all = [...document.querySelectorAll('summary')]
    all.forEach((summary, number) => { summary.dataset.number = number })
    return all.length
}"""

# Where the focus is, and whether a sign of it is on the screen.
FOCUS = f"""() => {{
    {_SHORT}
    const element = document.activeElement
    if (!element || element == document.body || element == document.documentElement) return null
    const style = getComputedStyle(element), box = element.getBoundingClientRect()
    const drawn = (style.outlineStyle != 'none' && parseFloat(style.outlineWidth) >= 2)
        || style.boxShadow != 'none'
    const inside = box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth
    return {{ what: short(element), number: element.dataset.number ?? '',
              visible: drawn && inside && box.width > 1 && box.height > 1 }}
}}"""

# What stands in a closed <details> and would not be printed, while its summary would.
HIDDEN_IN_CLOSED = f"""() => {{
    {_SHORT}
    const inside = document.querySelectorAll('details:not([open]) > :not(summary)')
    return [...inside].filter(
        e => !e.checkVisibility() && e.parentElement.checkVisibility()).slice(0, 10).map(short)
}}"""

# Text that stands out too little: less than `least` : 1 against what is painted under it.
# axe-core looks at HTML only, and takes seconds.
FAINT_TEXT = f"""least => {{
    {_SHORT}
    const canvas = document.createElement('canvas').getContext('2d', {{ willReadFrequently: true }})
    const known = {{}}
    const rgba = colour => known[colour] ??= (() => {{
        canvas.clearRect(0, 0, 1, 1)
        canvas.fillStyle = colour
        canvas.fillRect(0, 0, 1, 1)
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
        return [r, g, b, a / 255]
    }})()
    const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3]))
    const light = colour => colour.map(c => c / 255)
        .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0)
    const painted = e => {{
        const style = getComputedStyle(e), shape = e instanceof SVGGeometryElement
        const colour = shape && style.fill != 'none' ? style.fill
            : e instanceof SVGElement ? 'transparent' : style.backgroundColor
        const [r, g, b, a] = rgba(colour)
        return [r, g, b, a * (shape ? style.fillOpacity : 1) * style.opacity]
    }}
    const around = e => e ? [e, ...around(e.parentElement)] : []
    const below = e => {{
        if (!(e instanceof SVGElement)) return around(e)
        e.scrollIntoView({{ block: 'center', inline: 'center' }})
        const box = e.getBoundingClientRect()
        return document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2)
            .filter(other => !e.contains(other))
    }}
    const canvasColour = matchMedia('(prefers-color-scheme: dark)').matches
        && getComputedStyle(document.documentElement).colorScheme.includes('dark')
        ? [18, 18, 18] : [255, 255, 255]
    const found = new Set()
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    while (walker.nextNode()) {{
        const element = walker.currentNode.parentElement
        if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue
        if (['STYLE', 'TITLE', 'DESC'].includes(element.tagName.toUpperCase())) continue
        const style = getComputedStyle(element), chart = element instanceof SVGElement
        const under = below(element).reverse().reduce((c, e) => over(painted(e), c), canvasColour)
        const [r, g, b, a] = rgba(chart ? style.fill : style.color)
        const ink = over([r, g, b, a * (chart ? style.fillOpacity : 1) * style.opacity], under)
        const [high, low] = [light(ink), light(under)].sort((a, b) => b - a)
        const ratio = (high + .05) / (low + .05)
        if (ratio < least) found.add(`${{ratio.toFixed(2)}} : 1 ${{short(element)}}`)
    }}
    return [...found].slice(0, 20)
}}"""
